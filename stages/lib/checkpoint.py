"""Checkpoints inside a stage: the state of a loop, kept every few seconds, so that a killed stage goes on where it was.

A stage opens a place for them (`keeping`).  Each loop that runs in it, a training or the learning of a mask, is told apart
by a digest of all that it depends on: what the stage is (its settings and code), torch's random numbers, and what the
caller names: weights, examples, plan.  The digest of the loop before is in it, too, so that what that one depended on counts
for this one.  A loop that finds a state of the same digest goes on from there, and ends in the bytes that it would have
ended in; any other state is no use to it, and is replaced.

A state is one safetensors file, with JSON in its header and its own SHA-256.  What isn't in it is the position in the data:
a loop draws its batches again up to the step that it resumes at.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .digest import UNSEALED, require_sealed, seal
from .errors import StorageError
from .io import replacing, writes

if TYPE_CHECKING:  # a stage that trains nothing opens a place, too, and needs no torch for that
    from torch import Tensor

# a loop that took this share of the time between two checkpoints is kept as it ended
FINISHED_SHARE = 0.1
RANDOM = "random"


@dataclass
class State:
    """A loop after a step: tensors and numbers (what JSON knows) by name; `finished` if no step is left."""

    step: int
    tensors: "dict[str, Tensor]"
    facts: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    def part(self, name: str) -> "dict[str, Tensor]":
        """The tensors whose names begin with `name/`, without that."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }


@dataclass
class Keeper:
    """The place of one run of a stage: a file for each loop, written at most every `seconds`, never if these are 0."""

    folder: Path
    label: str
    seconds: float
    digest: bytes
    due: float
    loops: int = 0
    regained: float = 0.0


class Loop:
    """A loop whose state is kept, and found again by a later run."""

    def __init__(self, keeper: Keeper, steps: int, inputs: tuple[Any, ...]) -> None:
        from .identity import digest_of
        from .runtime import random_states

        keeper.loops += 1
        keeper.digest = digest_of(keeper.digest, inputs, random_states())
        self._keeper, self._steps, self._began, self._finished = keeper, steps, time.monotonic(), False
        self._key, self._path = keeper.digest.hex(), keeper.folder / f"{keeper.loops}.safetensors"

    def resume(self, put: Callable[[State], object]) -> int:
        """Call `put` with what an earlier run left of this loop, if it did; gives the step after which to go on, or 0.

        Torch's random numbers are those after that step, too.
        """
        from .runtime import put_random_states

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
        """Keep the state if it is time to."""
        if time.monotonic() >= self._keeper.due:
            self._write(state())

    def finish(self, state: Callable[[], State]) -> None:
        """Keep the state at the end of a loop that would take long to do again."""
        seconds = self._keeper.seconds
        long = time.monotonic() - self._began >= FINISHED_SHARE * seconds
        if seconds and not self._finished and (long or self._path.exists()):
            self._write(state())

    def _write(self, state: State) -> None:
        from safetensors.torch import save_file

        from .runtime import random_states

        tensors = state.tensors | {f"{RANDOM}/{name}": value for name, value in random_states().items()}
        facts = {**state.facts, "seconds": time.monotonic() - self._began}
        about = {**UNSEALED, "key": self._key, "step": state.step, "finished": state.finished, "facts": facts}
        try:
            with replacing(self._path) as partial:
                whole = {name: value.detach().contiguous() for name, value in tensors.items()}
                save_file(whole, partial, metadata={"checkpoint": json.dumps(about)})
                seal(partial)
        except (OSError, StorageError) as error:  # no reason to lose what was trained so far
            print(f"{self._keeper.label}: goes on without checkpoints: {error}", file=sys.stderr)
            self._keeper.seconds = 0.0
        self._keeper.due = time.monotonic() + (self._keeper.seconds or math.inf)


_open: list[Callable[[], Keeper]] = []


@contextmanager
def keeping(folder: Path, label: str, identify: Callable[[], tuple[float, Any]]) -> Iterator[None]:
    """A place for the checkpoints of all loops inside; it is removed at the end, unless that is an error.

    `identify()`, asked at the first loop, gives the seconds between two checkpoints (0: none are kept), and whatever tells
    this run from those whose checkpoints are of no use to it.  `label` is what lines on stderr begin with.
    """

    @cache
    def keeper() -> Keeper:
        from .identity import digest_of, versions

        seconds, words = identify()
        return Keeper(folder, label, seconds, digest_of(words, versions()), due=time.monotonic() + seconds)

    _open.append(keeper)
    try:
        yield
    finally:
        _open.pop()
    if keeper.cache_info().currsize and writes():
        shutil.rmtree(folder, ignore_errors=True)


def loop(steps: int, *inputs: object) -> Loop | None:
    """The next loop, or None where nothing is kept; `inputs` are all that its course depends on (see identity.py)."""
    keeper = _open[-1]() if _open else None
    return Loop(keeper, steps, inputs) if keeper and keeper.seconds else None


def regained_seconds() -> float:
    """Seconds of the loops, in runs that were killed, up to where this run went on."""
    return _open[-1]().regained if _open else 0.0


def _read(path: Path, key: str) -> State | None:
    """The state in a file; None if it is missing, of another digest, or damaged, which is told."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        require_sealed(path)
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["checkpoint"])
            tensors = {name: file.get_tensor(name) for name in file.keys()} if about["key"] == key else {}  # noqa: SIM118
        return State(about["step"], tensors, about["facts"], about["finished"]) if about["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        print(f"{path}: damaged ({error}), so this starts from the beginning", file=sys.stderr)
        return None
