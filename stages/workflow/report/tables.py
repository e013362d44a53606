"""Tables: a line for each group of rows, a column for each way to make one value of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stages.lib.words import points, small_percent, spread

from .spec import KINDS, Cell, Frames, Spec, SpecError, Table, chosen, fill, groups_of, named, only, rows_of
from .stats import Estimate, Mean, estimate, mean_of, paired


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


def value_of(spec: Spec, frames: Frames, rows: pd.DataFrame, cell: Cell, line: Mapping[str, Any]) -> Any:
    """What a cell makes of rows: a Mean or an Estimate, a text, or a number of keys."""
    return aggregate(spec, frames, own_rows(frames, rows, cell, line), cell, line)


def aggregate(spec: Spec, frames: Frames, rows: pd.DataFrame, cell: Cell, line: Mapping[str, Any]) -> Any:
    """The value of just these rows."""
    kind = next((kind for kind in KINDS if getattr(cell, kind)), "")
    column = getattr(cell, kind, "")
    if kind in ("interval", "words"):
        return _interval(spec, frames, rows, cell, column, line)
    if kind in ("percent", "points", "number"):
        values = pd.to_numeric(rows[column])
        return mean_of(values.groupby([rows[name] for name in cell.over]).mean() if cell.over else values)
    if kind == "count":
        return rows.dropna(subset=column).groupby(column).ngroups
    if kind == "sum_of":
        return "{:g} of {:g}".format(*rows[column].sum())
    if kind == "values":
        return ", ".join(f"{value:g}" for value in sorted(rows[column].dropna().unique()))
    if kind == "text":
        return "" if rows.empty or pd.isna(rows[column].iloc[0]) else str(rows[column].iloc[0])
    raise SpecError(f"{spec.path}: a cell needs one of {', '.join(KINDS)}: {cell}")


def own_rows(frames: Frames, rows: pd.DataFrame, cell: Cell, line: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a line that a cell is about: of its own frame those with the line's values, or a part of the line's."""
    if cell.data:
        return only(rows_of(frames, cell), {name: value for name, value in line.items() if name in frames[cell.data]})
    return chosen(rows, cell.where)


def _interval(
    spec: Spec, frames: Frames, rows: pd.DataFrame, cell: Cell, column: str, line: Mapping[str, Any]
) -> Estimate:
    index = [*cell.units, "seed"]
    mine = rows.set_index(index)[column].astype(float)
    if not cell.less:
        return estimate(mine, cell.units)
    first = {} if rows.empty else rows.iloc[0].to_dict()
    others = {name: fill(spec, value, "less", **first) if isinstance(value, str) else value for name, value in cell.less.items()}
    if rows.empty or all(first[name] == value for name, value in others.items()):
        return Estimate(0, None, None)
    frame = rows_of(frames, cell) if cell.data else frames[line["data"]]
    theirs = only(frame, {name: value for name, value in line.items() if name in frame and name not in others} | others)
    theirs = theirs if cell.data else chosen(theirs, cell.where)
    return paired(mine.groupby(level=index).mean(), theirs.groupby(index)[column].mean(), cell.units)


def text_of(cell: Cell, value: Any) -> str:
    """A cell's value as a table shows it."""
    if isinstance(value, Estimate):
        return value.words() if cell.words else value.in_points()
    if not isinstance(value, Mean):
        return str(value)
    if value.mean is None:
        return ""
    if cell.number:
        if cell.format == "size":
            return small_percent(value.mean)
        deviation = f" ({value.sd / cell.unit:{cell.format}})" if cell.deviation and value.sd is not None else ""
        return format(value.mean / cell.unit, cell.format) + deviation
    if cell.points:
        return points(value.mean) + ("" if value.sd is None else f" ({100 * value.sd:.1f})")
    return value.text()


def show(spec: Spec, frames: Frames, cell: Cell, line: Mapping[str, Any] | None = None) -> str:
    """A cell that stands alone, such as a fact."""
    return text_of(cell, value_of(spec, frames, frames.get(cell.data, pd.DataFrame()), cell, line or {}))


def facts_of(spec: Spec, frames: Frames) -> dict[str, str]:
    """What notes, titles and captions may name: the columns of the frames `run` and `facts`, which have one row, and the spec's facts."""
    found = {name: frame.iloc[0].dropna().to_dict() for name, frame in frames.items() if name in ("run", "facts") and len(frame)}
    facts = {**found.get("run", {}), **found.get("facts", {})}
    for name, cell in spec.facts.items():
        with named(spec, f"facts.{name}", frames):
            facts[name] = show(spec, frames, cell)
    return facts


def render(spec: Spec, frames: Frames) -> list[Rendered]:
    """Every table that has lines."""
    facts, found = facts_of(spec, frames), []
    for name, table in spec.tables.items():
        key = f"tables.{name}"
        with named(spec, key, frames):
            rows = rows_of(frames, table)
            for part, own in groups_of(spec, rows, [table.split] if table.split else []):
                lines = [*_lines(spec, frames, table, own)]
                if lines:
                    title = fill(spec, table.title, key, **facts, **part)
                    notes = [note for text in table.notes if (note := _note(spec, text, key, {**facts, **part}))]
                    header = [*(table.lead or table.by), *_columns(spec, table, own)]
                    found.append(Rendered(title, header, lines, notes))
    return found


def _note(spec: Spec, text: str, key: str, facts: Mapping[str, Any]) -> str:
    """A note; empty where a fact that it names has nothing to say."""
    from string import Formatter

    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    return "" if any(facts.get(name) == "" for name in names) else fill(spec, text, key, **facts)


def _columns(spec: Spec, table: Table, rows: pd.DataFrame) -> dict[str, Cell]:
    """The columns, with one for each value of a column of the frame where a cell says `each`."""
    found = {}
    for title, cell in table.columns.items():
        there = rows if cell.data else chosen(rows, cell.where)
        for value in spec.ordered(there[cell.each].dropna()) if cell.each else [title]:
            own = f"{cell.each} == {value!r}" if cell.each else ""
            where = " and ".join(f"({part})" for part in (own, cell.where) if part) if own else cell.where
            found[spec.label(value) if cell.each else title] = cell.model_copy(update={"where": where})
    return found


def _lines(spec: Spec, frames: Frames, table: Table, rows: pd.DataFrame) -> Iterator[Line]:
    columns = _columns(spec, table, rows)
    parts = [*groups_of(spec, rows, [table.groups] if table.groups else [])]
    for part, own in parts:
        if table.groups and len(parts) > 1:
            yield Line("group", [spec.label(part[table.groups])])
        yield from _own_lines(spec, frames, table, columns, own)
        if table.average and len(parts) > 1 and own[table.by[0]].nunique() > 1:
            yield from _average(spec, frames, table, columns, own, f"{table.average} of these")
    if table.average and parts:
        yield from _average(spec, frames, table, columns, rows, table.average)


def _own_lines(spec: Spec, frames: Frames, table: Table, columns: Mapping[str, Cell], rows: pd.DataFrame) -> Iterator[Line]:
    # conditions are looked at once for all lines
    ours = {title: rows if cell.data else chosen(rows, cell.where) for title, cell in columns.items()}
    papers = {title: _paper_rows(frames, table, cell) for title, cell in columns.items()}
    for values, own in groups_of(spec, rows, table.by):
        line = {"data": table.data, **values}
        parts = [own_rows(frames, own, cell, line) if cell.data else only(ours[title], values) for title, cell in columns.items()]
        cells = [text_of(cell, aggregate(spec, frames, part, cell, line)) for part, cell in zip(parts, columns.values(), strict=True)]
        labels = [small_percent(value) if isinstance(value, float) else spec.label(value) for value in values.values()]
        yield Line("ours", [*labels, *cells])
        theirs = [_published(papers[title], cell, values) for title, cell in columns.items()]
        if any(theirs):
            yield Line("paper", ["paper", *[""] * (len(table.by) - 1), *theirs])


def _paper_rows(frames: Frames, table: Table, cell: Cell) -> pd.DataFrame | None:
    """The publication's rows that a column is about; None where it has none of its values."""
    column = cell.percent or cell.points or cell.number
    if not table.paper or column not in frames["paper"].select_dtypes("number"):
        return None
    return chosen(chosen(frames["paper"], table.paper), cell.where).dropna(subset=column)


def _published(paper: pd.DataFrame | None, cell: Cell, values: Mapping[str, Any]) -> str:
    """The publication's value below a cell: the same rows and column of paper.csv, with the deviation of <column>_sd."""
    rows = None if paper is None else only(paper, values)
    if rows is None or rows.empty:
        return ""
    column = cell.percent or cell.points or cell.number
    if cell.number:
        return format(rows[column].iloc[0], cell.format)
    deviation = rows.get(f"{column}_sd", pd.Series(np.nan, rows.index)).iloc[0]
    return spread(rows[column].iloc[0], None if pd.isna(deviation) else deviation)


def _average(
    spec: Spec, frames: Frames, table: Table, columns: Mapping[str, Cell], rows: pd.DataFrame, label: str
) -> Iterator[Line]:
    """The means over the lines, and below them the publication's where it has a value for each line."""
    cells = {title: cell.model_copy(update={"over": table.by[:1]}) for title, cell in columns.items()}
    shown = [text_of(cell, value_of(spec, frames, rows, cell, {"data": table.data})) for cell in cells.values()]
    yield Line("average", [label, *[""] * (len(table.by) - 1), *shown])
    names, theirs = rows[table.by[0]].unique(), []
    for cell in columns.values():
        paper = _paper_rows(frames, table, cell)
        values = [_published(paper, cell, {table.by[0]: name}).partition(" ")[0] for name in names]
        theirs.append(f"{np.mean([*map(float, values)]):.1f}" if all(values) else "")
    if any(theirs):
        yield Line("paper", ["paper", *[""] * (len(table.by) - 1), *theirs])
