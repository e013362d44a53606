"""Tables: a line for each group of rows, a column for each way to make one value of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import pandas as pd

from skill_grafting.support.formatting import small_percent
from stages.workflow.report.spec import (
    Cell,
    Frames,
    Spec,
    SpecError,
    Table,
    by_line,
    chosen,
    fill,
    groups_of,
    named,
    rows_of,
)
from stages.workflow.report.stats import Mean, estimate, mean_of


@dataclass(frozen=True)
class Line:
    """A line as it is shown: ours, the paper's below it, an average, or the heading of a group."""

    kind: str
    cells: list[str]


@dataclass(frozen=True)
class Rendered:
    """A table as it is shown."""

    title: str
    header: list[str]
    lines: list[Line]
    notes: list[str]


@dataclass(frozen=True)
class _Column:
    """A column of a table with the rows that it is about, ours and the publication's."""

    title: str
    cell: Cell
    rows: pd.DataFrame
    paper: pd.DataFrame


def aggregate(cell: Cell, rows: pd.DataFrame) -> Any:
    """The one value that a cell makes of rows: a Mean or an Estimate, a number of keys, or a text."""
    if cell.interval:
        return estimate(rows.set_index(["task", "seed"])[cell.interval].astype(float))
    if cell.column:
        values = pd.to_numeric(rows[cell.column])
        return mean_of(values.groupby([rows[name] for name in cell.over]).mean() if cell.over else values)
    if cell.count:
        return rows.dropna(subset=cell.count).groupby(cell.count).ngroups
    if cell.sum_of:
        return "{:g} of {:g}".format(*rows[cell.sum_of].sum())
    if cell.text:
        return next((str(text) for text in rows[cell.text][:1].dropna()), "")
    raise SpecError(f"a cell needs one of percent, number, interval, count, sum_of, text: {cell}")


def text_of(cell: Cell, value: Any) -> str:
    """A cell's value as a table shows it."""
    level = " percent" * (cell.format == "percent")
    form = f"interval{level}" if cell.interval else "percent ±" if cell.percent else cell.format
    return format(value, form) if isinstance(value, Mean) else str(value)


def value_of(frames: Frames, cell: Cell, line: Mapping[str, Any] | None = None) -> Any:
    """The value of a cell that stands alone, of the rows of its frame that have these values."""
    return aggregate(cell, by_line(rows_of(frames, cell), line or {})(line or {}))


def facts_of(spec: Spec, frames: Frames) -> dict[str, Any]:
    """What texts may name: the columns of the frames `run` and `facts`, which have one row, the headline and the spec's facts."""
    facts: dict[str, Any] = {}
    for name in ("run", "facts"):
        if name in frames and len(frames[name]):
            facts |= frames[name].iloc[0].dropna().to_dict()
    for section in ("headline", "facts"):
        for name, cell in getattr(spec, section).items():
            with named(spec, f"{section}.{name}", frames):
                value = value_of(frames, cell)
                facts[name] = spec.names.get(value, value) if isinstance(value, str) else value
    return facts


def render(spec: Spec, frames: Frames) -> list[Rendered]:
    """Every table that has lines."""
    facts, found = facts_of(spec, frames), []
    for name, table in spec.tables.items():
        key = f"tables.{name}"
        with named(spec, key, frames):
            for part, rows in groups_of(spec, rows_of(frames, table), [table.split] if table.split else []):
                columns = [*_columns(spec, frames, table, rows)]
                lines = [*_lines(spec, table, columns, rows)]
                if lines:
                    title = fill(spec, table.title, key, **facts, **part)
                    notes = [note for text in table.notes if (note := _note(spec, text, key, {**facts, **part}))]
                    header = [*(table.lead or table.by), *(column.title for column in columns)]
                    found.append(Rendered(title, header, lines, notes))
    return found


def _note(spec: Spec, text: str, key: str, facts: Mapping[str, Any]) -> str:
    """A note; empty where a fact that it names has nothing to say."""
    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    return "" if any(f"{facts.get(name)}" == "" for name in names) else fill(spec, text, key, **facts)


def _columns(spec: Spec, frames: Frames, table: Table, rows: pd.DataFrame) -> Iterator[_Column]:
    """The columns, one for each value of a column of the frame where a cell says `each`."""
    for title, cell in table.columns.items():
        each = [cell.each] if cell.each else []
        own, paper = rows_of(frames, cell) if cell.data else chosen(rows, cell.where), _paper_rows(frames, table, cell)
        find = by_line(paper, each)
        for values, found in groups_of(spec, own, each):
            label = "".join(spec.label(value) for value in values.values()) or title
            yield _Column(label, cell, found, find(values))


def _paper_rows(frames: Frames, table: Table, cell: Cell) -> pd.DataFrame:
    """The publication's rows that a column is about; none where it has none of its values."""
    if not table.paper or cell.column not in frames["paper"].select_dtypes("number"):
        return pd.DataFrame(columns=[*table.by, cell.each])
    return chosen(chosen(frames["paper"], table.paper), cell.where).dropna(subset=cell.column)


def _lines(spec: Spec, table: Table, columns: Sequence[_Column], rows: pd.DataFrame) -> Iterator[Line]:
    """A line for each group of rows, the publication's below it, and averages."""
    groups = [table.groups] if table.groups else []
    parts = [*groups_of(spec, rows, groups)]
    found = [(each.cell, *(by_line(own, [*groups, *table.by]) for own in (each.rows, each.paper))) for each in columns]
    for part, own in parts:
        if groups and len(parts) > 1:
            yield Line("group", [spec.label(part[table.groups])])
        for values, _ in groups_of(spec, own, table.by):
            labels = [
                small_percent(value) if isinstance(value, float) else spec.label(value) for value in values.values()
            ]
            line = part | values
            yield Line("ours", [*labels, *(text_of(cell, aggregate(cell, ours(line))) for cell, ours, _ in found)])
            yield from _paper_line(table, [_published(cell, paper(line)) for cell, _, paper in found])
        if table.average and len(parts) > 1 and own[table.by[0]].nunique() > 1:
            yield from _average(table, columns, part, own[table.by[0]].unique(), f"{table.average} of these")
    if table.average and rows[table.by[0]].nunique() > 1:
        yield from _average(table, columns, {}, rows[table.by[0]].unique(), table.average)


def _published(cell: Cell, rows: pd.DataFrame) -> str:
    """The publication's value, in the column of the same name, with the deviation of <column>_sd."""
    if rows.empty:
        return ""
    first = rows.iloc[0]
    deviation = first.get(f"{cell.column}_sd")
    return text_of(cell, Mean(1, first[cell.column], None if pd.isna(deviation) else deviation))


def _average(
    table: Table, columns: Sequence[_Column], part: Mapping[str, Any], names: Sequence[Any], label: str
) -> Iterator[Line]:
    """The means over the lines of these names, and below them the publication's where it has a value for each line."""
    shown, theirs, first = [], [], table.by[0]
    for column in columns:
        cell = column.cell.model_copy(update={"over": [first]})
        shown.append(text_of(cell, aggregate(cell, by_line(column.rows, part)(part))))
        known = column.paper[column.paper[first].isin(names)].groupby(first)
        whole = known.ngroups == len(names)
        theirs.append(text_of(cell, Mean(len(names), known[cell.column].first().mean(), None)) if whole else "")
    yield Line("average", [label, *[""] * (len(table.by) - 1), *shown])
    yield from _paper_line(table, theirs)


def _paper_line(table: Table, cells: list[str]) -> Iterator[Line]:
    if any(cells):
        yield Line("paper", ["paper", *[""] * (len(table.by) - 1), *cells])
