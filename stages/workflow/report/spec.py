"""report.yaml: which tables, claims and figures a pipeline's report has.  No number is computed in it.

Every derived quantity is a column of a tidy frame (the script of a pipeline's report), so that a table is a group-by, a figure a pivot
and a claim the difference of two groups.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from skill_grafting.support.errors import GraftError, did_you_mean, plain_problem
from skill_grafting.support.formatting import UNKNOWN
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.report.formats import Template, display_name

Frames = dict[str, pd.DataFrame]
# columns of names that a user chooses, which are text where they look like numbers (2019, 007), truth values or nothing (null, nan)
NAMES = (
    *("task", "test_set", "trained_on", "scored_on", "source", "target", "control", "first", "second", "pair"),
    *("group", "order", "after", "method", "localizer"),
)
NO_RESULT = "The numbers that this report leads with were not asked for or are undefined; what was measured follows."


class SpecError(GraftError):
    """A report.yaml says something that is not allowed, or names what its frames don't have."""


class Section(BaseModel):
    """A part of report.yaml, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Rows(Section):
    """Rows of a frame: all, or those that `where` selects, as in DataFrame.query."""

    data: str = ""
    where: str = ""


class Cell(Rows):
    """How rows become one value, by one of the first six keys; `over` takes means of these groups first.

    percent: mean (standard deviation) in %; number: mean by a `format` (stages/workflow/report/formats.py), with " ±" behind it also the deviation;
    interval: mean with its 95 % interval over tasks, in points or (`format: percent`) in %; count: number of different keys;
    sum_of: "3 of 4"; text: the first.  `each`: a column for each value of a column of the frame.
    """

    percent: str = ""
    number: str = ""
    interval: str = ""
    count: list[str] = []
    sum_of: list[str] = []
    text: str = ""
    over: list[str] = []
    format: str = ",.0f"
    each: str = ""

    @property
    def column(self) -> str:
        """The column whose mean is taken."""
        return self.percent or self.number


class Table(Rows):
    """A line for each value of `by`; below it the publication's, of the rows of paper.csv that `paper` selects.

    `groups`: a heading for each value of this column; `average`: label of a line of the means over the lines; `split`: a table
    for each value of this column, which the title may name.
    """

    title: str
    by: list[str]
    lead: list[str] = []
    columns: dict[str, Cell]
    notes: list[str] = []
    groups: str = ""
    average: str = ""
    split: str = ""
    paper: str = ""


class Control(Rows):
    """What has to be shown above 0, or nothing can be said; `lacks` says what is missing where it isn't."""

    value: str
    units: list[str] = ["task"]
    lacks: str


class Paper(Section):
    """The published figure: what it `says`, its `place`, and with what it was measured; `alike`: its own values, judged as ours."""

    says: str
    place: str = ""
    size: str = ""
    model: str = ""
    n: str = ""
    alike: str = ""

    @property
    def short(self) -> str:
        """What it says, and its own values, without where that stands."""
        return "; ".join(filter(None, (self.says, self.alike)))

    def __str__(self) -> str:
        """`95 % (Table 2; 0.01 %, RoBERTa-base, 5 seeds)`."""
        source = "; ".join(filter(None, (self.place, ", ".join(filter(None, (self.size, self.model, self.n))))))
        return f"{self.says}{f' ({source})' if source else ''}{f'; {self.alike}' if self.alike else ''}"


class Reduction(Section):
    """Of a difference: what both sides are means `of`, and how much lower the second is at `least` in the publication."""

    of: str
    least: float


class Claim(Rows):
    """A value, or that of group `a` less that of `b` (groups of column `by`; or two columns), held against a limit.

    `each`: a claim for each value of these columns, one family.  `statistic`: of the two sides their difference over common
    cells, the difference of two groups' means that share units (`contrast`), or their rank correlation.  `reduction`: beside
    the difference it is told how much lower the second side is in proportion.
    `scale`: how {mean}, {interval} and exceptions are told: of Fisher's z what it is of.  `fields`: cells that texts may name, as they may facts
    and the texts that all rows of a claim have in common.  `void`: why nothing can be measured, if that is so.
    `question`: what is asked, in words that other reports have for the same, of other rows; `elsewhere`: where else it is asked.

    A frame {data}_published has the publication's own values, to be judged alike; {data}_drawn has samples of the test rows of
    a run with one task.
    """

    words: str
    value: str | list[str]
    by: str = "method"
    a: str = ""
    b: str = ""
    each: list[str] = []
    units: list[str] = ["task"]
    statistic: Literal["difference", "contrast", "correlation"] = "difference"
    rule: Literal["above", "below"] = "above"
    limit: float = 0.0
    scale: Literal["percent", "number", "fisher"] = "percent"
    reduction: Reduction | None = None
    void: str = ""
    given: list[str] = []
    family: str = ""
    figure: str = ""
    fields: dict[str, Cell] = {}
    size: str = ""
    paper: Paper | None = None
    question: str = ""
    elsewhere: str = ""


class Level(Rows):
    """A line across a figure: the mean of a column."""

    value: str
    label: str


class Figure(Rows):
    """A figure of one `kind` (plots.py): `value` by `x` or `y`, a colour for each `hue`, a panel for each value of `panel`.

    `mean`: label of a first, larger panel or row with the mean over all panels or rows, of lines where all panels have values,
    unless they are `growing` in number (and then without whiskers).  `split`: a figure for each value.  `without`: what the file
    says where there are no rows to draw, for a file that DVC wants in any case.
    """

    kind: Literal["dots", "lines", "paths", "heatmap"]
    title: str
    caption: str
    value: str = ""
    label: str
    x: str = ""
    y: str = ""
    x_label: str = ""
    hue: str = ""
    panel: str = ""
    points: str = ""
    mean: str = ""
    growing: bool = False
    units: list[str] = ["task"]
    levels: list[Level] = []
    diagonal: bool = False
    log: bool = False
    box: float = 0
    centre: float | None = None
    split: str = ""
    without: str = ""


class Spec(Section):
    """A parsed report.yaml; `names`: label of each group, in the order of lines, columns and colours.

    `headline`: at most 15 numbers for `dvc metrics`.  Texts may name these and `facts`: "{kept:percent} %".
    """

    title: str
    setting: str
    sentence: str
    names: dict[str, str] = {}
    facts: dict[str, Cell] = {}
    headline: dict[str, Cell] = {}
    tables: dict[str, Table] = {}
    controls: dict[str, Control] = {}
    claims: list[Claim] = []
    figures: dict[str, Figure] = {}
    path: Path = Path("report.yaml")

    def label(self, name: object) -> str:
        """A group's name for people."""
        return self.names.get(str(name)) or display_name(str(name))

    def ordered(self, groups: Iterable[Any]) -> list[Any]:
        """Each group once: those with a name in the order of the names, the others as they come."""
        there = [*dict.fromkeys(groups)]
        rank = {name: place for place, name in enumerate(self.names)}
        return sorted(there, key=lambda group: rank.get(str(group), len(rank)))


def read_spec(path: Path) -> Spec:
    """The report.yaml of a pipeline; raises SpecError with every problem in a line of its own."""
    try:
        return Spec(**load_yaml(path, SpecError), path=path)
    except ValidationError as problem:
        raise SpecError("\n".join(f"{path}: {plain_problem(error, '', Spec)}" for error in problem.errors())) from None


def load_frames(folder: Path, paper: Path | None = None) -> Frames:
    """Tidy frames by name: the CSV files of a folder, and `paper`, the publications' values under the same names of columns."""
    frames = {file.stem: read_frame(file) for file in sorted(folder.glob("*.csv"))}
    return frames | ({"paper": read_frame(paper)} if paper and paper.exists() else {})


def read_frame(file: Path) -> pd.DataFrame:
    """A tidy frame as it was written: names are text whatever they look like, and only an empty cell has no value."""
    names = (*NAMES, "model") if file.stem == "run" else NAMES  # elsewhere `model` may be its size
    return pd.read_csv(file, dtype=dict.fromkeys(names, str), keep_default_na=False, na_values=[""])


@contextmanager
def named(spec: Spec, key: str, frames: Frames) -> Iterator[None]:
    """Turn a name that frames don't have into one line with file, key and the nearest name."""
    try:
        yield
    except SpecError as error:
        raise SpecError(
            str(error) if str(error).startswith(str(spec.path)) else f"{spec.path}: {key}: {error}"
        ) from None
    except (KeyError, pd.errors.UndefinedVariableError) as error:
        name = error.args[0].split("'")[1] if isinstance(error, NameError) else error.args[0]
        known = [*frames, *(column for frame in frames.values() for column in frame)]
        raise SpecError(f"{spec.path}: {key}: no frame or column {name!r}{did_you_mean(name, known)}") from None


def texts_of(rows: pd.DataFrame) -> dict[str, Any]:
    """The texts that all rows have in common, by column."""
    columns = rows.select_dtypes(exclude=["number", "bool"])
    return {name: values.iloc[0] for name, values in columns.items() if values.nunique(dropna=False) == 1}


def rows_of(frames: Frames, section: Rows, otherwise: str = "") -> pd.DataFrame:
    """The rows that a section is about."""
    return chosen(frames[section.data or otherwise], section.where)


def chosen(rows: pd.DataFrame, where: str) -> pd.DataFrame:
    """Those of the rows that a condition of DataFrame.query selects; all without one."""
    try:
        return rows.query(where) if where else rows
    except (SyntaxError, ValueError, TypeError) as error:
        raise SpecError(f"where: {where!r}: {error}") from None


def by_line(rows: pd.DataFrame, names: Iterable[str]) -> Callable[[Mapping[str, Any]], pd.DataFrame]:
    """Finds the rows that have a line's values of those names that are columns; they are grouped once."""
    there = [name for name in names if name in rows]
    if not there:
        return lambda line: rows
    parts = dict([*rows.groupby(there, sort=False)])
    return lambda line: parts.get(tuple(line[name] for name in there), rows.iloc[:0])


def groups_of(spec: Spec, rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each combination of the values of these columns with its rows, in the order of the spec's names, the first column first."""
    if not by:
        yield {}, rows
        return
    parts = dict([*rows.groupby(by[0], sort=False)])
    for value in spec.ordered(parts):
        for values, found in groups_of(spec, parts[value], by[1:]):
            yield {by[0]: value, **values}, found


def result(spec: Spec, facts: Mapping[str, Any]) -> str:
    """What the report found, in words, without what has no number here."""
    return _defined(fill(spec, spec.sentence, "sentence", **facts)) or NO_RESULT


def heading(spec: Spec, figure: Figure, key: str, **facts: Any) -> str:
    """The title of a figure without what has no number here; what it shows, if nothing else is in it."""
    title = _defined(fill(spec, figure.title, key, **facts)).removesuffix(".")
    return title or figure.label[:1].upper() + figure.label[1:]


def _defined(text: str) -> str:
    """The text with each sentence ended before its first part without a number; one whose first part has none goes."""
    return " ".join(filter(None, map(_defined_sentence, re.split(r"(?<=[.]) ", text))))


def _defined_sentence(sentence: str) -> str:
    known, unknown, after = sentence.partition(UNKNOWN)
    if not unknown:
        return sentence
    end = max(known.rfind(", "), known.rfind("; "))
    return known[:end] + "." * after.endswith(".") if end > 0 else ""


def fill(spec: Spec, text: str, key: str, **fields: Any) -> str:
    """A template with its fields; raises SpecError for one that isn't there."""
    try:
        return Template().format(text, **fields)
    except (KeyError, ValueError, TypeError) as error:
        raise SpecError(f"{spec.path}: {key}: {text!r}: {error}{did_you_mean(error.args[0], fields)}") from None
