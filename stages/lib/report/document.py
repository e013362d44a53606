"""What the summary says, before it is set for a terminal or as markdown."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


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
    """What is said of a claim, in words."""

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
class Claim:
    """A claim, what is said of it, the figure, and what does not follow it."""

    text: str
    verdict: Verdict
    figure: str
    exceptions: list[str]

    @property
    def holds(self) -> bool | None:
        """Whether it does; None where it can't be measured."""
        return None if self.verdict is Verdict.OPEN else self.verdict is Verdict.HOLDS


# said below the verdict where a claim is not shown
HOW_JUDGED = (
    "A difference holds where all of its 95 % interval is above 0, does not hold where all of it is below, and is not shown "
    "otherwise."
)


@dataclass(frozen=True)
class Report:
    """All of it, in the order it is read: setting, tables, facts about the masks, verdict."""

    title: str
    setting: str
    tables: list[Table]
    facts: list[str]
    claims: list[Claim]

    @property
    def how_judged(self) -> str:
        """What the words of the verdict mean where they need to be told; else empty."""
        return HOW_JUDGED if any(claim.verdict is Verdict.UNCLEAR for claim in self.claims) else ""
