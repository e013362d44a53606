"""What reproduces and what does not: the paper's claims beside the numbers of the reports.

python -m stages.commands.page.reproduction        writes stages/REPRODUCTION.md from metrics/*.json
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.errors import DataError
from stages.lib.io import read_json, write_text
from stages.lib.report.document import Verdict
from stages.lib.yaml12 import load_yaml

CLAIMS = Path(__file__).with_name("reproduction.yaml")
PAGE = Path("stages/REPRODUCTION.md")
INTRO = """# What reproduces and what does not

Written by `python -m stages.commands.page.reproduction` from `metrics/*.json`; change nothing here by hand.

The paper's numbers are of RoBERTa-base with prompts, on GLUE and other public sets, with 5 seeds. Ours are of the
default settings (`params.yaml`): a smaller model with a new head, other tasks, few seeds, a larger region. So
the effects can be compared and the sizes can't. A claim holds if the number is on its side of the limit. A difference
with an interval holds if all of the interval is, does not hold if none of it is, and is not shown otherwise. n counts
cells, that is tasks times seeds, and of one cell nothing follows.
"""


@dataclass(frozen=True)
class Row:
    """A claim beside its number; `here` is empty where the report has none."""

    claim: str
    paper: str
    here: str
    verdict: Verdict
    figure: str | None


@dataclass(frozen=True)
class Number:
    """A number of a report, with what the report says about it."""

    mean: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


def rows(folder: Path) -> list[Row]:
    """Every claim of reproduction.yaml, judged by the reports in a project folder."""
    return [_row(entry, folder) for entry in load_yaml(CLAIMS, DataError)]


def markdown(folder: Path) -> str:
    """The page: a table of all claims, then their figures."""
    figures = dict.fromkeys(
        row.figure for row in rows(folder) if row.figure and (folder / paths.PLOTS / row.figure).is_file()
    )
    pictures = [f"![{figure.removesuffix('.png')}](../{paths.PLOTS}/{figure})" for figure in figures]
    return "\n".join([INTRO, table(folder), "", "## Figures", "", "\n\n".join(pictures), ""])


def table(folder: Path) -> str:
    """The claims as a table of markdown."""
    lines = ["| the paper says | in the paper | here | verdict |", "| :-- | :-- | :-- | :-- |"]
    lines += [f"| {row.claim} | {row.paper} | {row.here or 'not run'} | **{row.verdict}** |" for row in rows(folder)]
    return "\n".join(lines)


def _row(entry: dict[str, Any], folder: Path) -> Row:
    numbers = _report(folder / paths.METRICS / f"{entry['from']}.json")
    value = _number(numbers, entry["at"])
    if value and "less" in entry:
        less = _number(numbers, entry["less"])
        value = Number(value.mean - less.mean, n=value.n) if less and less.n == value.n else None
    verdict = _judged(value, entry["holds"]) if value and value.n != 1 else Verdict.OPEN
    return Row(
        entry["claim"],
        entry["paper"],
        _written(value, entry["unit"]) if value else "",
        verdict,
        entry.get("figure"),
    )


def _report(path: Path) -> dict[str, Any]:
    return read_json(path, DataError) if path.is_file() else {}


def _number(report: dict[str, Any], place: list[str]) -> Number | None:
    found: Any = report
    for name in place:
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return None if found is None else Number(found)
    if found.get("mean") is None:
        return None
    return Number(found["mean"], found.get("low"), found.get("high"), found.get("n"))


def _judged(value: Number, rule: dict[str, float]) -> Verdict:
    [(name, limit)] = rule.items()
    if name == "above" and value.low is not None:
        return Verdict.of_interval(value.low, value.high, limit)
    holds = {"above": value.mean > limit, "at_least": value.mean >= limit, "at_most": value.mean <= limit}
    return Verdict.of(holds[name])


def _written(value: Number, unit: str) -> str:
    sign = "+" if unit == "points" else ""
    text = f"{100 * value.mean:{sign}.1f} {'points' if unit == 'points' else '%'}"
    if value.low is not None and value.high is not None:
        text += f" (95 % interval {100 * value.low:{sign}.1f} to {100 * value.high:{sign}.1f})"
    return text if value.n is None else f"{text}, n = {value.n}"


def main() -> None:
    """Write the page."""
    write_text(PAGE, markdown(Path()))
    print(PAGE)


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("reproduction", main)
