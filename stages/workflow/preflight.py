"""What a run needs beside settings that are allowed: the folders that DVC follows, and texts that dvc.lock can hold."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from skill_grafting.support.errors import ParamsError, shown

# settings that name a folder which is among the deps of a stage, whatever the source is
FOLDERS = ("data.root", "model.root", "finetune.root")
# where a value may begin in a line of dvc.lock, which DVC breaks at 80 characters, and in how many tables a key may stand there
COLUMNS, LEVELS = range(80), range(12)


def check_settings(
    targets: Sequence[str], files: Collection[str] = (), localizers: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The checked settings of the main pipeline, of those of these targets and of these files, and a line on each list left out.

    With `localizers` theirs are checked, too, which imports torch.  Raises ParamsError with all problems of the first of three steps
    that finds any: each setting, the rules between settings, and what a run needs beside these.
    """
    from stages.text.tasks.settings import get_by_path
    from stages.workflow.stage.settings import PIPELINES, checked, params_file, read_files

    folders = {"", *(Path(target.partition(":")[0]).parent.name for target in targets)}
    found = read_files([name for name in PIPELINES if name in folders or str(params_file(name)) in files])
    values, left_out = checked(found, localizers)
    problems = [
        f"{key}: there is no folder {place!r}, which DVC follows whatever the source is; make it, or name another"
        for key in FOLDERS
        if not (place := get_by_path(values, key)) or not Path(place).is_dir()
    ]
    for content in found.values():
        problems += [
            f"{key}: {shown(text)} has {why} in dvc.lock, which then can't be read again; shorten it, or leave these out"
            for key, text, why in unreadable(content)
        ]
    if problems:
        raise ParamsError("\n".join(problems))
    return values, left_out


def unreadable(content: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted key, text and what is wrong with it, of each key and value that DVC would write otherwise than it is."""
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        name = f"{place}.{key}".lstrip(".") if isinstance(content, dict) else place
        if isinstance(key, str) and not _is_plain(key) and not _survives(_nested(key, level) for level in LEVELS):
            yield place, key, "spaces or signs at which a name is broken"
        if isinstance(value, str) and not _is_plain(value) and not _survives(_placed(value)):
            yield name, value, "spaces or signs at which it is broken otherwise than it is read"
        yield from unreadable(value, name)


def _is_plain(text: str) -> bool:
    """True for what has nothing at which a line might be broken."""
    return text.isprintable() and " " not in text


def _survives(contents: Iterable[dict[str, Any]]) -> bool:
    """True if DVC's reader reads each of these as its writer was given it."""
    from dvc.utils.serialize import dumps_yaml, loads_yaml

    try:
        return all(loads_yaml(dumps_yaml(content)) == content for content in contents)
    except Exception:  # what ruamel.yaml raises of a text that it can't read or write
        return False


def _placed(value: str) -> Iterator[dict[str, Any]]:
    yield from ({"k" * at: value} for at in COLUMNS)
    for level in LEVELS:  # in a list
        yield _nested("k", level, [value])


def _nested(key: str, level: int, value: Any = 0) -> dict[str, Any]:
    content: dict[str, Any] = {key: value}
    for _ in range(level):
        content = {"k": content}
    return content
