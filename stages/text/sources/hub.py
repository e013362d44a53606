"""Data sets of the Hugging Face hub, without loading scripts: nothing from the hub is ever run."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skill_grafting.support.errors import DataError, one_line
from skill_grafting.support.offline import endpoint, hub_answers
from stages.text.rows.content import Row
from stages.text.tasks.tasks import HubSource, TaskSpec, columns_in, packaged_tasks

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

# What a text calls the item of the list that its row is made for.
ITEM = "item"


def load_hub(spec: TaskSpec) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Give the raw rows of a task by split, and the data set's id and revision.

    When the hub can't be reached, a data set that was loaded before is taken from the cache of
    `datasets`.  Raises DataError, within seconds, if there is no such copy, and if the data set
    lacks a split or column that the task names.
    """
    if spec.hub is None:
        remedy = f"set data.source to packaged or local, or `task.{spec.name}.hub`"
        raise DataError(f"task {spec.name}: no data set of the hub is known for it; {remedy}")
    builder, names = _prepared(spec, spec.hub), spec.hub.splits
    # of a beginning such as train[:1000] the name of the split
    _require(spec, "split", [name.partition("[")[0] for name in names.values()], builder.info.splits)
    splits = {split: _rows(spec, spec.hub, builder.as_dataset(split=name)) for split, name in names.items()}
    return splits, {"source": "hub", "path": spec.hub.path, "name": spec.hub.name, "revision": str(builder.hash)}


def _prepared(spec: TaskSpec, source: HubSource) -> "DatasetBuilder":
    reachable = hub_answers()  # asked before `datasets` is imported, which would try again for minutes
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        files, revision = source.files, source.revision
        builder = datasets.load_dataset_builder(source.path, source.name, data_files=files, revision=revision)
        builder.download_and_prepare()
    except Exception as problem:  # the hub's libraries raise errors of many kinds, all with one remedy
        if not reachable:
            raise DataError(
                f"task {spec.name}: {endpoint()} can't be reached, and {source.path} is not in the cache of `datasets`; "
                f"go online, or set data.source=packaged (tasks {', '.join(packaged_tasks())}), "
                f"or data.source=local with your own files under data.root"
            ) from problem
        failed = f"the hub's data set {source.path} could not be loaded"
        raise DataError(f"task {spec.name}: {failed}: {one_line(problem)}") from problem
    return builder


def _require(spec: TaskSpec, kind: str, names: Iterable[str], there: Iterable[str]) -> None:
    """Raise DataError unless the data set has all these splits or columns."""
    for name in (name for name in names if name not in there):
        has = f"has no {kind} {name!r}; it has {', '.join(there)}"
        raise DataError(f"task.{spec.name}.hub.{kind}s: {spec.hub.path} {has}")


def _rows(spec: TaskSpec, source: HubSource, data: "Dataset") -> list[Row]:
    """Turn one split into raw rows; label -1, the hub's mark for none, becomes None."""
    texts = [name for text in source.columns.values() for name in columns_in(text)]
    used = [name for name in dict.fromkeys([*texts, source.each, source.among]) if name not in (ITEM, None)]
    _require(spec, "column", used, data.column_names)
    columns = {name: data[name][:] for name in used}
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if source.each:
        records = [{**record, ITEM: item} for record in records for item in record[source.each]]
    return [_row(spec, source, record) for record in records]


def _row(spec: TaskSpec, source: HubSource, record: dict[str, Any]) -> Row:
    row = {field: _text(text, record) for field, text in source.columns.items() if field != "label"}
    if source.among is None:
        return {**row, "label": _label(spec, source, record[source.columns["label"]])}
    # where nothing is the answer, the answer isn't given
    inside = source.labels[record[ITEM] in record[source.among]] if record[source.among] else None
    return {**row, "label": inside}


def _text(text: str, record: dict[str, Any]) -> str | None:
    """A column, or a text put together from several; None if one of those isn't there."""
    if "{" not in text:
        return record[text]
    return None if any(record[name] is None for name in columns_in(text)) else text.format_map(record)


def _label(spec: TaskSpec, source: HubSource, value: object) -> str | None:
    if value is None or value == -1:
        return None
    if source.labels is None:
        return str(value)
    if isinstance(value, int) and 0 <= value < len(source.labels):
        return source.labels[value]
    strange = f"the label {value!r}, which is not the number of one of {', '.join(source.labels)}"
    raise DataError(f"task.{spec.name}.hub.labels: {source.path} has {strange}")
