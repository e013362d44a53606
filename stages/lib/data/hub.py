"""Data sets of the Hugging Face hub, without loading scripts: nothing from the hub is ever run.

Whether it answers is asked once and quickly, since the libraries retry for minutes where there is no network.
"""

import os
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

from ..errors import DataError
from .tasks import HubSource, TaskSpec, columns_in, packaged_tasks

Rows = list[dict[str, str | None]]
# What a text calls the item of the list that its row is made for.
ITEM = "item"


def load_hub(spec: TaskSpec) -> tuple[dict[str, Rows], dict[str, Any]]:
    """Give the raw rows of a task by split, and the data set's id and revision.

    When the hub can't be reached, a data set that was loaded before is taken from the cache of
    `datasets`.  Raises DataError, within seconds, if there is no such copy, and if the data set
    lacks a split or column that the task names.
    """
    if spec.hub is None:
        raise DataError(
            f"task {spec.name}: no data set of the hub is known for it; set data.source to packaged or local, or `task.{spec.name}.hub`"
        )
    reachable = hub_reachable()
    if not reachable:
        go_offline()  # before `datasets` is imported, which else would try again for minutes
    builder = _prepared(spec, spec.hub, reachable)
    splits = {
        split: _rows(spec, spec.hub, builder.as_dataset(split=_known(spec, name, builder.info.splits)))
        for split, name in spec.hub.splits.items()
    }
    return splits, {"source": "hub", "path": spec.hub.path, "name": spec.hub.name, "revision": str(builder.hash)}


def _prepared(spec: TaskSpec, source: HubSource, reachable: bool) -> Any:
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(
            source.path, source.name, data_files=source.files, revision=source.revision
        )
        builder.download_and_prepare()
    except Exception as problem:  # the hub's libraries raise errors of many kinds, all with one remedy
        if not reachable:
            raise DataError(_unreachable(spec, source)) from problem
        detail = " ".join(str(problem).split())[:300]
        raise DataError(
            f"task {spec.name}: the hub's data set {source.path} could not be loaded: {type(problem).__name__}: {detail}"
        ) from problem
    return builder


def _unreachable(spec: TaskSpec, source: HubSource) -> str:
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    return (
        f"task {spec.name}: {endpoint} can't be reached, and {source.path} is not in the cache of `datasets`; "
        f"go online, or set data.source=packaged (tasks {', '.join(packaged_tasks())}), "
        f"or data.source=local with your own files under data.root"
    )


def _known(spec: TaskSpec, name: str, splits: Any) -> str:
    if name.partition("[")[0] not in splits:
        raise DataError(
            f"task.{spec.name}.hub.splits: {spec.hub.path} has no split {name!r}; it has {', '.join(splits)}"
        )
    return name


def _rows(spec: TaskSpec, source: HubSource, data: Any) -> Rows:
    """Turn one split into raw rows; label -1, the hub's mark for none, becomes None."""
    texts = [name for text in source.columns.values() for name in columns_in(text)]
    used = [name for name in dict.fromkeys([*texts, source.each, source.among]) if name not in (ITEM, None)]
    for column in used:
        if column not in data.column_names:
            raise DataError(
                f"task.{spec.name}.hub.columns: {source.path} has no column {column!r}; it has {', '.join(data.column_names)}"
            )
    columns = {name: data[name][:] for name in used}
    records = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [_row(spec, source, item) for record in records for item in _items(source, record)]


def _items(source: HubSource, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record, or one for each item of the list in its column `each`."""
    return [record] if source.each is None else [{**record, ITEM: item} for item in record[source.each]]


def _row(spec: TaskSpec, source: HubSource, record: dict[str, Any]) -> dict[str, str | None]:
    if not spec.labels:
        return {
            ours: _text(source.columns[theirs], record)
            for ours, theirs in zip(("sentence1", "label"), spec.columns, strict=True)
        }
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


def _label(spec: TaskSpec, source: HubSource, value: Any) -> str | None:
    if value is None or value == -1:
        return None
    if source.labels is None:
        return str(value)
    if isinstance(value, int) and 0 <= value < len(source.labels):
        return source.labels[value]
    raise DataError(
        f"task.{spec.name}.hub.labels: {source.path} has the label {value!r}, which is not the number of one of {', '.join(source.labels)}"
    )


OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUB = "https://huggingface.co"


def hub_reachable(timeout_s: float = 4.0) -> bool:
    """Give whether the hub (or the mirror in HF_ENDPOINT) answers within `timeout_s`; raises nothing.

    False too where one of the offline switches of the environment is on.
    """
    if any(os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE") for switch in OFFLINE_SWITCHES):
        return False
    answered = threading.Event()
    # In a thread, since the time limit of a request doesn't cover looking up the host's name.
    asking = threading.Thread(target=_ask, args=(answered, timeout_s), daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()


def go_offline() -> None:
    """Make the Hugging Face libraries of this process, and of those it starts, use their caches alone."""
    for switch in OFFLINE_SWITCHES:
        os.environ[switch] = "1"
    # A library reads its switch when it is imported; one that was imported before is told here.
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True


def _ask(answered: threading.Event, timeout_s: float) -> None:
    request = urllib.request.Request(os.environ.get("HF_ENDPOINT") or HUB, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=timeout_s).close()
    except urllib.error.HTTPError as answer:
        # The hub itself answers, if only with a refusal of this address; a 5xx is a gateway's excuse.
        if answer.code >= 500:
            return
    except (OSError, ValueError):
        return
    answered.set()
