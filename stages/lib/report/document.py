"""What the summary says, before it is set for a terminal or as markdown."""

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Claim:
    """A claim, whether it holds (None where it can't be measured), the figure, and what does not follow it."""

    text: str
    holds: bool | None
    figure: str
    exceptions: list[str]

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "holds", False: "does not hold", None: "not measurable"}[self.holds]


@dataclass(frozen=True)
class Report:
    """All of it, in the order it is read: setting, tables, facts about the masks, verdict."""

    title: str
    setting: str
    tables: list[Table]
    facts: list[str]
    claims: list[Claim]
