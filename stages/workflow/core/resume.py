"""Checkpoints inside a stage: the state of a loop is saved regularly, so that a killed stage resumes.

A stage is a function of its settings, its code, its seed and the files that it reads.  So the third loop of a run is the third loop
of any other run with the same ones, and its key says no more: settings and code, size and time of the files that were read
(READ of stages/skill_grafting/io.py), torch's random numbers, and its number.  A state under another key is replaced.

A state is one safetensors file, with JSON in its header.  What isn't in it is the position in the data: a loop
draws its batches again up to the step that it resumes at.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from skill_grafting.errors import StorageError
from skill_grafting.io import READ
from skill_grafting.loops import KEEPERS, State
from skill_grafting.writing import replacing

# in the folder of a run that ended: the dvc.lock that will say so
ENDED = "ended"
# a loop that took this share of the time between two checkpoints is kept as it ended
FINISHED_SHARE = 0.1
RANDOM = "random"


@dataclass
class Keeper:
    """The place of one run of a stage: a file for each loop, written at most every `seconds`, never if these are 0."""

    folder: Path
    label: str
    seconds: float
    identity: list[Any]
    due: float
    loops: int = 0
    regained: float = 0.0


class KeptLoop:
    """A loop whose state is kept, and found again by a later run."""

    def __init__(self, keeper: Keeper, steps: int) -> None:
        keeper.loops += 1
        self._keeper, self._steps, self._began, self._finished = keeper, steps, time.monotonic(), False
        self._key, self._path = _key(keeper, steps), keeper.folder / f"{keeper.loops}.safetensors"

    def resume(self, put: Callable[[State], object]) -> int:
        """Call `put` with what an earlier run left of this loop, if it did; gives the step after which to go on, or 0."""
        from skill_grafting.runtime import put_random_states

        found = _read(self._path, self._key)
        if found is None:
            return 0
        put(found)
        put_random_states(found.part(RANDOM))
        self._finished = found.finished
        self._began -= found.facts["seconds"]
        self._keeper.regained += found.facts["seconds"]
        print(f"{self._keeper.label}: resumes at step {found.step:,} of {self._steps:,}", file=sys.stderr)
        return found.step

    def keep(self, state: Callable[[], State]) -> None:
        """Save the state if it is due."""
        if time.monotonic() >= self._keeper.due:
            self._write(state())

    def finish(self, state: Callable[[], State]) -> None:
        """Save the state at the end of a loop that would take long to repeat."""
        long = time.monotonic() - self._began >= FINISHED_SHARE * self._keeper.seconds
        if self._keeper.seconds and not self._finished and (long or self._path.exists()):
            self._write(state())

    def _write(self, state: State) -> None:
        from safetensors.torch import save_file

        from skill_grafting.runtime import random_states

        tensors = state.tensors | {f"{RANDOM}/{name}": value for name, value in random_states().items()}
        facts = {**state.facts, "seconds": time.monotonic() - self._began}
        about = {"key": self._key, "step": state.step, "finished": state.finished, "facts": facts}
        try:
            with replacing(self._path) as partial:
                whole = {name: value.detach().contiguous() for name, value in tensors.items()}
                save_file(whole, partial, metadata={"checkpoint": json.dumps(about)})
        except (OSError, StorageError) as error:  # training goes on
            print(f"{self._keeper.label}: goes on without checkpoints: {error}", file=sys.stderr)
            self._keeper.seconds = 0.0
        self._keeper.due = time.monotonic() + (self._keeper.seconds or math.inf)


@contextmanager
def keeping(
    folder: Path, label: str, identify: Callable[[], tuple[float, list[Any]]], lock: Path | None = None
) -> Iterator[None]:
    """A place for the checkpoints of all loops inside; it is removed at the end, unless that is an error.

    With a `lock`, the dvc.lock in which DVC records this run once it has hashed its outputs, the next run of any stage removes
    it after that: who is killed in between has lost nothing.  `identify()`, asked at the first loop, gives the seconds between two
    checkpoints (0: none are kept), and the arguments, settings and code of this run.  `label` is what lines on stderr begin with.
    """
    READ.clear()
    _remove_recorded(folder.parent)
    (folder / ENDED).unlink(missing_ok=True)

    @cache
    def keeper() -> Keeper:
        seconds, identity = identify()
        return Keeper(folder, label, seconds, identity, due=time.monotonic() + seconds)

    KEEPERS.append(lambda steps: KeptLoop(keeper(), steps) if keeper().seconds else None)
    _regained.append(lambda: keeper().regained)
    try:
        yield
    finally:
        KEEPERS.pop(), _regained.pop()
    if lock and folder.is_dir():
        (folder / ENDED).write_text(str(lock), encoding="utf-8")
    elif keeper.cache_info().currsize:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_recorded(folder: Path) -> None:
    """Remove the checkpoints of runs that ended before their dvc.lock was last written."""
    for ended in folder.glob(f"*/{ENDED}"):
        with suppress(OSError):  # another stage that starts now removes it, too
            if Path(ended.read_text(encoding="utf-8")).stat().st_mtime_ns > ended.stat().st_mtime_ns:
                shutil.rmtree(ended.parent, ignore_errors=True)


_regained: list[Callable[[], float]] = []


def regained_seconds() -> float:
    """Seconds of the loops, in runs that were killed, up to where this run went on."""
    return _regained[-1]() if _regained else 0.0


def _key(keeper: Keeper, steps: int) -> str:
    import torch

    from skill_grafting.runtime import random_states

    machine = [
        version("torch"),
        version("transformers"),
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
    ]
    random = {name: state.numpy().tobytes() for name, state in random_states().items()}
    return sha256(repr([keeper.identity, machine, READ, random, keeper.loops, steps]).encode()).hexdigest()


def _read(path: Path, key: str) -> State | None:
    """The state in a file; None if it is missing, has another key, or is damaged (with a message)."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["checkpoint"])
            if about["key"] != key:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return State(about["step"], tensors, about["facts"], about["finished"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        print(f"{path}: damaged ({error}), so this starts from the beginning", file=sys.stderr)
        return None
