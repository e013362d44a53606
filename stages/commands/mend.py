"""Mends the two files of DVC that a run which was killed can leave damaged, and removes what stages have left half-written.

It says so; nobody has to do it by hand.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from stages.lib.errors import StorageError
from stages.lib.io import read_json, write_text
from stages.lib.yaml12 import load_yaml
from stages.workflow.core import paths

Given, Result = ParamSpec("Given"), TypeVar("Result")
NOTES = Path(".dvc/tmp/rwlock")
# a command of DVC in a list of processes: its own, and what the runner starts; a fork has the words of its server
DVC = {"dvc", "stages.commands.parallel.quick_dvc", "stages.commands.parallel.in_clone"}
FORKS = "dvc.cli"
MADE = ("data", "models", "masks", "metrics", "plots")
# what users put there is theirs, whatever its name
GIVEN = tuple(Path(place) for place in ("data/local", "models/local", "models/checkpoints"))


def mending(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Make a function that reads what DVC has noted mend it first where that is damaged."""

    @wraps(function)
    def run(*arguments: Given.args, **named: Given.kwargs) -> Result:
        mend_notes()
        remove_partials()
        try:
            return function(*arguments, **named)
        except StorageError:
            if not mend_locks():
                raise
            return function(*arguments, **named)

    return run


def lock_files() -> list[Path]:
    """dvc.lock of every pipeline that has one."""
    files = [paths.PIPELINE, *sorted(paths.PIPELINES.glob(f"*/{paths.PIPELINE}"))]
    return [lock for file in files if (lock := file.with_suffix(".lock")).exists()]


def mend_locks() -> bool:
    """Put the last commit's dvc.lock in place of one that can't be read, or take it away; gives whether there was one.

    What has run since then comes back from DVC's run cache.  Raises StorageError if DVC is at work.
    """
    if not any(map(_is_damaged, lock_files())):
        return False
    with _dvc("lock"):
        for path in filter(_is_damaged, lock_files()):
            _say(path, _restore(path))
    return True


def _is_damaged(path: Path) -> bool:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(load_yaml(path, StorageError))
    except (StorageError, Invalid):
        return True
    return False


def _restore(path: Path) -> str:
    text = committed(path)
    if text is not None:
        write_text(path, text)
        if not _is_damaged(path):
            return "is as in the last commit again; what has run since comes back from the cache"
    path.unlink()
    return "is removed; DVC writes it anew, and what has run comes back from the cache"


def committed(path: Path) -> str | None:
    """The text of a file in the last commit; None if there is no such commit or file."""
    shown = subprocess.run(["git", "show", f"HEAD:./{path}"], capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 else None


def mend_notes() -> None:
    """Take away DVC's notes on who reads and writes if they can't be read.

    Raises StorageError if a run of DVC is alive that needs them.
    """
    if _are_readable():
        return
    with _dvc("rwlock.lock"):
        if _are_readable():
            return
        if alive := _runs_of_dvc():
            raise StorageError(f"{NOTES} is damaged, and DVC still runs here (process {alive[0]}): wait for its end")
        NOTES.unlink()
    _say(NOTES, "is removed; DVC needs it only while it runs")


def remove_partials() -> None:
    """Take away what killed stages have left under temporary names, unless a stage or DVC is at work here.

    A stage that runs again replaces its own, but one whose outputs DVC takes from its cache doesn't run.
    """
    found = [path for place in MADE for path in Path(place).rglob("*.partial") if not {*GIVEN} & {*path.parents}]
    found += [*Path().glob("dvc.lock.partial"), *paths.PIPELINES.glob("*/dvc.lock.partial")]
    if not found or _runs_of_dvc() or [*stages_at_work(Path.cwd())] or _writes_by_hand():
        return
    for path in found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    found = [path for path in found if not path.exists()]
    if not found:  # a folder that can only be read
        return
    told = f"removed {len(found)} half-written file(s) or folder(s) that a killed stage has left, {found[0]} for one"
    print(told, file=sys.stderr)


def _say(path: Path, mended: str) -> None:
    print(f"{path} was damaged by a run that was killed, and {mended}", file=sys.stderr)


def _are_readable() -> bool:
    try:
        return isinstance(read_json(NOTES, StorageError), dict)
    except (StorageError, OSError):
        return not NOTES.exists()


@contextmanager
def _dvc(name: str) -> Iterator[None]:
    """Keep DVC from writing meanwhile."""
    from dvc.lock import LockError, make_lock

    try:
        with make_lock(str(NOTES.with_name(name)), tmp_dir=str(NOTES.parent)):
            yield
    except LockError:
        raise StorageError("a run of DVC is at work here: wait for its end") from None


def _runs_of_dvc() -> list[int]:
    """Processes of DVC that were started in this folder."""
    return [
        number
        for number, words in _processes(Path.cwd())
        if DVC & {Path(word).name for word in words[:3]} or FORKS in words[3:]
    ]


def stages_at_work(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and words of each process of a stage that was started in a folder, and of each fork that runs one."""
    for number, words in _processes(folder):
        of_stage = any(word.startswith("stages.") and not word.startswith("stages.commands.") for word in words)
        if of_stage or any(word.endswith("fork_server.py") for word in words[2:3]):  # python -P fork_server.py ...
            yield number, words


def _writes_by_hand() -> bool:
    """True if a command that writes, such as `graft compose`, is at work in this folder."""
    commands = {
        word
        for number, words in _processes(Path.cwd())
        if number != os.getpid()
        for word in words
        if word.startswith("stages.commands.")
    }
    return bool(commands - {"stages.commands.plan", "stages.commands.parallel"})


def _processes(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and words of each process that was started in a folder."""
    import psutil

    for one in psutil.process_iter(["cmdline", "cwd"]):
        if one.info["cwd"] == str(folder.resolve()):
            yield one.pid, one.info["cmdline"] or []
