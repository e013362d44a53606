"""What reproduces and what does not: claims of publications beside the numbers of the reports.

python -m stages.commands.page.reproduction        writes stages/REPRODUCTION.md from metrics/*.json
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from stages.commands.page.results import MAIN
from stages.lib import paths
from stages.lib.errors import DataError, plain_problem
from stages.lib.io import read_json, write_text
from stages.lib.params import data_files
from stages.lib.report.claims import Rule, is_published, verdict_of
from stages.lib.report.document import Verdict
from stages.lib.report.stats import Estimate, Mean
from stages.lib.settings import Section

PAGE = Path("stages/REPRODUCTION.md")
INTRO = """# What reproduces and what does not

Written by `python -m stages.commands.page.reproduction` from `metrics/*.json`; change nothing here by hand.

The paper's numbers are of RoBERTa-base with prompts, on GLUE and other public sets, with 5 seeds. Ours are of the
default settings (`params.yaml`): a smaller model with a new head, other tasks, few seeds, a larger region. So
the effects can be compared and the sizes can't. A claim holds if the number is on its side of the limit. A difference
with an interval holds if all of the interval is, does not hold if none of it is, and is not shown otherwise. n counts
cells, that is tasks times seeds, and of one cell nothing follows.
"""


class Published(Section):
    """A row of claims.yaml that holds a claim of a publication against a stored number (see stages/claims.yaml)."""

    words: str
    paper: str
    at: list[str]
    less: list[str] = Field(default=[])
    unit: Literal["percent", "points"]
    rule: Rule = "above"
    limit: float = 0.0
    plot: str = ""


@dataclass(frozen=True)
class Row:
    """A claim beside its number; `here` is empty where the report has none, `plot` where there is no figure."""

    claim: Published
    here: str
    verdict: Verdict
    plot: Path | None


def rows(folder: Path) -> Iterator[Row]:
    """Every such claim of the pipelines, judged by the reports in a project folder."""
    for pipeline, stored in data_files("claims.yaml").items():
        report = folder / paths.report(pipeline or MAIN)
        numbers = read_json(report) if report.is_file() else {}
        for claim in _published(pipeline, stored):
            value = _value(claim, numbers)
            verdict = verdict_of(value, claim.rule, claim.limit) if getattr(value, "n", 0) != 1 else Verdict.OPEN
            plot = paths.report_plots(pipeline) / claim.plot if claim.plot else None
            yield Row(claim, "" if value is None else _written(value, claim.unit), verdict, plot)


def markdown(folder: Path) -> str:
    """The page: a table of all claims, then their figures."""
    found = [*rows(folder)]
    lines = ["| the paper says | in the paper | here | verdict |", "| :-- | :-- | :-- | :-- |"]
    lines += [
        f"| {row.claim.words} | {row.claim.paper} | {row.here or 'not run'} | **{row.verdict}** |" for row in found
    ]
    plots = dict.fromkeys(row.plot for row in found if row.plot and (folder / row.plot).is_file())
    pictures = [f"![{plot.relative_to(paths.PLOTS).with_suffix('')}](../{plot})" for plot in plots]
    return "\n".join([INTRO, *lines, "", "## Figures", "", "\n\n".join(pictures), ""])


def _published(pipeline: str, stored: list[Any]) -> list[Published]:
    try:
        return TypeAdapter(list[Published]).validate_python([row for row in stored if is_published(row)])
    except ValidationError as problem:
        words = plain_problem(problem.errors()[0], "claims", list[Published])
        raise DataError(f"{paths.PIPELINES / pipeline / 'claims.yaml'}: {words}") from None


def _value(claim: Published, numbers: dict[str, Any]) -> Estimate | Mean | float | None:
    value = _number(numbers, claim.at)
    if value is None or not claim.less:
        return value
    less = _number(numbers, claim.less)
    if less is None or getattr(less, "n", None) != getattr(value, "n", None):
        return None
    difference = getattr(value, "mean", value) - getattr(less, "mean", less)
    return Mean(value.n, difference, None) if isinstance(value, Mean) else difference


def _number(numbers: Any, place: list[str]) -> Estimate | Mean | float | None:
    for name in place:
        numbers = numbers.get(name) if isinstance(numbers, dict) else None
    if not isinstance(numbers, dict):
        return numbers
    mean = Mean(numbers.get("n", 0), numbers.get("mean"), numbers.get("sd"))
    if mean.mean is None or "low" not in numbers:
        return None if mean.mean is None else mean
    return Estimate(mean.n, mean.mean, mean.sd, numbers["low"], numbers["high"], numbers.get("positive", 0))


def _written(value: Estimate | Mean | float, unit: str) -> str:
    sign, name = ("+", "points") if unit == "points" else ("", "%")
    text = f"{100 * getattr(value, 'mean', value):{sign}.1f} {name}"
    if isinstance(value, Estimate):
        text += f" (95 % interval {100 * value.low:{sign}.1f} to {100 * value.high:{sign}.1f})"
    return f"{text}, n = {value.n}" if isinstance(value, Mean) else text


def main() -> None:
    """Write the page."""
    write_text(PAGE, markdown(Path()))
    print(PAGE)


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("reproduction", main)
