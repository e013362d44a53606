"""A report's table: lines of data by columns that aggregate them; its text and its numbers are two views of the same values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from . import document
from .format import percent, spread
from .stats import Mean, mean_of

Key = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Column:
    """`of` aggregates a line's data to one value for each cell (a Series), a Mean, a Estimate or a number; `form` writes that.

    `key` is the column's name in the metrics file and among the paper's values.  The name of a frame's
    column may stand for `of`: that column, nothing where the frame has none.
    """

    title: str
    of: str | Callable[[Any], Any]
    form: Callable[[Any], str]
    key: str = ""

    def value(self, data: Any) -> Any:
        """The aggregated value of a line."""
        if callable(self.of):
            return self.of(data)
        return data[self.of] if self.of in data else pd.Series(dtype=float)


@dataclass(frozen=True)
class Line:
    """One row to be: its first cells, and the data its columns aggregate (None: a heading of the lines below it).

    `key` is its place in the metrics file, a path where it is nested; without one it is not stored.
    `paper`: column key -> fraction or (mean, deviation), written below the line under the label `source`.
    """

    label: str | tuple[str, ...]
    data: Any = None
    key: Key = None
    kind: Literal["ours", "average", "group"] = "ours"
    paper: Mapping[str, Any] | None = None
    place: int = 0
    source: str = "  paper"


@dataclass(frozen=True)
class Table:
    """`lead` is the header of the lines' labels; without a title it is only stored.

    In the metrics file it is called `name`, and has the columns with the keys `stored`, in this order: else all that have a key.
    """

    title: str
    lead: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    name: str = ""
    stored: Sequence[str] = ()

    @cached_property
    def values(self) -> list[list[Any]]:
        """The aggregated value of every line and column, made once for both views."""
        columns = self.columns
        return [[] if line.data is None else [column.value(line.data) for column in columns] for line in self.lines]

    def text(self) -> document.Table:
        """As the report shows it; columns without a title are only stored."""
        shown = [number for number, column in enumerate(self.columns) if column.title]
        rows = []
        for line, values in zip(self.lines, self.values, strict=True):
            label = [line.label] if isinstance(line.label, str) else [*line.label]
            cells = [self.columns[number].form(values[number]) for number in shown] if values else []
            rows.append(document.Row("group" if line.data is None else line.kind, [*label, *cells]))
            theirs = [_published(line.paper, self.columns[number].key) for number in shown] if line.paper else []
            if any(theirs):
                rows.append(document.Row("paper", [line.source, *[""] * (len(self.lead) - 1), *theirs]))
        header = [*self.lead, *(self.columns[number].title for number in shown)]
        return document.Table(self.title, header, rows, [*self.notes])

    def numbers(self) -> dict[str, Any]:
        """line -> column -> n, mean, sd and so on, as the metrics file has it; lines without any cell are left out."""
        found: dict[str, Any] = {}
        keys = {column.key: number for number, column in enumerate(self.columns) if column.key}
        for line, values in sorted(zip(self.lines, self.values, strict=True), key=lambda pair: pair[0].place):
            if line.key is None or not values:
                continue
            parts = {key: numbers_of(values[keys[key]]) for key in self.stored or keys}
            if any(part != {"n": 0} for part in parts.values()):
                *folders, last = [line.key] if isinstance(line.key, str) else line.key
                place = found
                for name in folders:
                    place = place.setdefault(name, {})
                place.setdefault(last, {}).update(parts)
        return found


def by(
    frame: pd.DataFrame,
    column: str,
    label: Callable[[str], str] = str,
    order: Callable[[Iterable[str]], Sequence[str]] = list,
    paper: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Line]:
    """A line for each value of a frame's column; shown in `order`, stored in the order in which they occur."""
    parts = {name: (place, part) for place, (name, part) in enumerate(frame.groupby(column, sort=False))}
    return [
        Line(label(name), parts[name][1], str(name), paper=(paper or {}).get(name), place=parts[name][0])
        for name in order(parts)
    ]


def shown(tables: Iterable[Table]) -> list[document.Table]:
    """Those with a title and lines, as the report shows them."""
    return [table.text() for table in tables if table.title and table.lines]


def stored(tables: Iterable[Table]) -> dict[str, Any]:
    """The numbers of those with a name, by name; tables of one name are one."""
    found: dict[str, Any] = {}
    for table in tables:
        if table.name:
            found.setdefault(table.name, {}).update(table.numbers())
    return found


def numbers_of(value: object) -> Any:
    """A value as the metrics file has it."""
    if isinstance(value, pd.Series):
        value = mean_of(pd.to_numeric(value))
    return value.numbers() if isinstance(value, Mean) else value


def _mean(value: object) -> Mean:
    return value if isinstance(value, Mean) else mean_of(pd.to_numeric(pd.Series(value)))


def _published(theirs: Mapping[str, Any], key: str) -> str:
    value = theirs.get(key)
    return "" if value is None else spread(*value) if isinstance(value, tuple) else percent(value)


def share(title: str, of: str | Callable[[Any], Any], key: str = "") -> Column:
    """A column of mean (standard deviation) in %; `key` is `of` where that is a name."""
    return Column(title, of, lambda value: _mean(value).text(), key or (of if isinstance(of, str) else ""))


def number(title: str, of: str | Callable[[Any], Any], form: str, unit: float = 1, key: str = "") -> Column:
    """A column of plain means, written with a format as of f-strings; empty where there is none."""

    def text(value: object) -> str:
        mean = _mean(value).mean
        return "" if mean is None else format(mean / unit, form)

    return Column(title, of, text, key)


def count(*cell: str) -> Column:
    """A column of the number of cells, told by these columns of the frame."""
    return Column("n", lambda data: data.groupby([*cell]).ngroups, str)


def values_in(form: str) -> Callable[[Any], str]:
    """Writes the different values of a column, in order: "0.5, 1"."""
    return lambda values: ", ".join(format(value, form) for value in sorted(values.dropna().unique()))
