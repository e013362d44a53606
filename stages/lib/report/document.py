"""A report as data: stored beside its numbers, and read again by whatever sets it for a terminal, markdown or the page."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from stages.lib.errors import DataError, GraftError
from stages.lib.io import read_json, write_json


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
        """Of a number and its limit; None where there is no number."""
        return cls.OPEN if holds is None else cls.HOLDS if holds else cls.FAILS

    @classmethod
    def of_interval(cls, low: float | None, high: float | None, limit: float = 0.0) -> "Verdict":
        """Of "above the limit": holds or fails where the whole interval does, and is not shown where it spans the limit."""
        if low is None or high is None:
            return cls.OPEN
        return cls.HOLDS if low > limit else cls.FAILS if high < limit else cls.UNCLEAR


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
    """A claim, what is said of it, the figure, and what does not follow it."""

    text: str
    verdict: Verdict
    figure: str
    exceptions: list[str]
    here: str = ""
    paper: Paper | None = None
    plot: str = ""

    @property
    def holds(self) -> bool | None:
        """True or False; None where it can't be measured."""
        return None if self.verdict is Verdict.OPEN else self.verdict is Verdict.HOLDS


HEADING = "Verdict, on averages over tasks"
# said below the verdict where a claim is not shown
HOW_JUDGED = (
    "A difference holds where all of its 95 % interval is above 0, does not hold where all of it is below, and is not shown "
    "otherwise."
)


@dataclass(frozen=True)
class Report:
    """All of it, in the order it is read: setting, tables, facts about the masks, verdict.

    `settings` are those of params.yaml that it was made under (stages/lib/report/differences.py); `publish` stores them.
    """

    title: str
    setting: str
    tables: list[Table]
    facts: list[str]
    claims: list[Claim]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def how_judged(self) -> str:
        """The meaning of the words of the verdict where they need to be told; else empty."""
        return HOW_JUDGED if any(claim.verdict is Verdict.UNCLEAR for claim in self.claims) else ""


def write_report(path: Path, report: Report) -> None:
    """Store a report as JSON."""
    write_json(path, TypeAdapter(Report).dump_python(report, mode="json"))


def read_report(path: Path, error: type[GraftError] = DataError) -> Report:
    """A report that write_report stored; raises `error`, which names the file, if it is missing or damaged."""
    stored = read_json(path, error)
    try:
        return TypeAdapter(Report).validate_python(stored)
    except ValidationError as problem:
        raise error(f"{path}: not a stored report: {problem.errors()[0]['msg']}") from None
