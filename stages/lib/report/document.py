"""A report as data: stored beside its numbers, and read again by whatever sets it for a terminal, markdown or the page."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from ..errors import DataError
from ..io import read_json, write_json


@dataclass(frozen=True)
class Row:
    """One line of a table: our values, the paper's below them, an average, or the heading of a group."""

    kind: Literal["ours", "paper", "average", "group"]
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, the others numbers, and `notes` say how to read it."""

    title: str
    header: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


class Verdict(StrEnum):
    """The four words that are said of claims."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNCLEAR = "not shown"
    OPEN = "not measurable"

    @classmethod
    def of(cls, holds: bool | None) -> "Verdict":
        """Of an exact answer; None where there is none."""
        return cls.OPEN if holds is None else cls.HOLDS if holds else cls.FAILS


@dataclass(frozen=True)
class Paper:
    """The published figure: what it `says`, its `place`, and the `size` of the graft, the model and the n it was measured with."""

    says: str
    place: str = ""
    size: str = ""
    model: str = ""
    n: str = ""

    def __str__(self) -> str:
        """`95 % (Table 2; 0.01 %, RoBERTa-base, 5 seeds)`."""
        measured = ", ".join(filter(None, (self.size, self.model, self.n)))
        source = "; ".join(filter(None, (self.place, measured)))
        return f"{self.says} ({source})" if source else self.says


@dataclass(frozen=True)
class Claim:
    """A claim and what is said of it: the figure, `here` (the settings it was measured under), what does not follow it.

    `plot` is a figure of the pipeline's folder; `paper` is None for a claim of our own.
    """

    text: str
    verdict: Verdict
    figure: str
    exceptions: list[str]
    here: str = ""
    paper: Paper | None = None
    plot: str = ""


HEADING = "Verdicts"
# said below the heading
HOW_JUDGED = (
    "Tasks are the sample: seeds of a task are averaged first. A claim holds where the 95 % interval over tasks (jackknife) lies "
    "on its side of the limit, does not hold where it lies on the other side, and is not shown where it spans the limit; "
    "claims of one family that can be measured are corrected together (Holm). One task or one seed has no interval, so nothing follows "
    "from it; nor where a control says that there is nothing to measure. For most of what is kept or compared the control is that training "
    "has been shown to gain over the better of two baselines in each cell, the pretrained model with the same head and always the same label."
)


@dataclass(frozen=True)
class Report:
    """All of it, in the order it is read: setting, tables, facts about the masks, verdicts.

    `settings` are those of params.yaml that it was made under (stages/lib/report/differences.py); `publish` stores them.
    """

    title: str
    setting: str
    tables: list[Table]
    facts: list[str]
    claims: list[Claim]
    settings: dict[str, Any] = field(default_factory=dict)


def write_report(path: Path, report: Report) -> None:
    """Store a report as JSON."""
    write_json(path, TypeAdapter(Report).dump_python(report, mode="json"))


def read_report(path: Path) -> Report:
    """A report that write_report stored; raises DataError, which names the file, if it is missing or damaged."""
    stored = read_json(path)
    try:
        return TypeAdapter(Report).validate_python(stored)
    except ValidationError as problem:
        raise DataError(f"{path}: not a stored report: {problem.errors()[0]['msg']}") from None
