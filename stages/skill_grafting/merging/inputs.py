"""What several tasks' models have inside their masks, a piece of a tensor at a time, of all tasks at once.

So the memory that it takes to merge them grows neither with the models nor with the tasks.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

import numpy as np
import torch
from torch import Tensor, nn

from ..grafting.apply import put_at, write
from ..grafting.differences import (
    FIRST,
    as_bits,
    difference,
    is_finite,
    is_plain,
    is_same,
    is_whole,
    subtracted,
    widest,
)
from ..grafting.mask import GraftMask, require_mask
from ..grafting.region import Region, Tensors, outline
from ..grafting.select import CACHED, Scratch
from ..modules.comparing import require_fit
from ..support.errors import MaskError, ParamsError, a_kind

LOGGER = logging.getLogger("skill_grafting")
# tasks with as many numbers at a time as the cache holds of a few tensors; of more tasks there are fewer
TOGETHER = 2
# of a piece of which no larger share changed only this share is worked on: more takes longer to collect than to compute
FEW = 0.25
# threads that read files while what was read is worked on: to map what lies in the system's cache takes most of the time
READERS = 2
# the numbers from a place to another of a tensor laid end to end
Slices = Callable[[int, int], Tensor]


@dataclass(frozen=True)
class TaskValues:
    """What a task's model has inside its mask, or, without one, everywhere: whole tensors, or, `packed`, the values at the mask alone.

    `cast`: they are taken in the base's type, which holds them exactly.  `whole`: its heads and buffers, which aren't merged.
    """

    values: Tensors
    mask: GraftMask | None = None
    packed: bool = False
    cast: bool = False
    whole: Sequence[str] = ()


@dataclass(frozen=True)
class Piece:
    """The places `start` to `stop` of a tensor laid end to end, and of these what a task has: `at`, from the start on; None is all.

    before: the base's values at them; given: task -> which of these it has (None: all), and its values.  What is made in `scratch` is
    there until the next piece is worked on.
    """

    name: str
    start: int
    stop: int
    at: Tensor | None
    before: Tensor
    given: dict[str, tuple[Tensor | None, Tensor]]
    scratch: Scratch | None = None

    @cached_property
    def places(self) -> Tensor:
        """Their flat indices in the tensor."""
        return torch.arange(self.start, self.stop) if self.at is None else self.at + self.start

    def after(self, task: str) -> Tensor:
        """The task's values, and the base's where it has none."""
        where, values = self.given[task]
        if where is None:
            return values
        after = self.before.clone()
        put_at(after, where, values)
        return after

    @cached_property
    def wide(self) -> Tensor:
        """The base's values in float64, whole numbers as they are."""
        if self.scratch is None or is_whole(self.before):
            return _wide(self.before)
        kind = torch.complex128 if self.before.is_complex() else torch.float64
        return self.scratch("wide", self.before, kind).copy_(self.before)

    @cached_property
    def _plain(self) -> bool:
        """True if the base's values are finite numbers: nothing else can be the same infinity in a task."""
        return is_plain(self.before)

    def moved(self, task: str, use: str = "difference") -> Tensor:
        """How far the task's values are from the base's, in float64; in the scratch memory of this use."""
        moved = subtracted if self._plain else difference
        return moved(self.wide, self.after(task), True, self.scratch, use)

    def changed(self) -> "Piece":
        """Those of its places where a task has other bits than the base, if they are few; else the piece as it is.

        After reinforcement learning 99 % of a model are as before.
        """
        afters = [values for _, values in self.given.values()]
        whole = all(where is None for where, _ in self.given.values())
        if not whole or any(after.dtype != self.before.dtype for after in afters) or self.before.itemsize > 8:
            return self
        ours, *others = (as_bits(values).numpy() for values in (self.before, *afters))
        for size in (FIRST, len(ours)):
            differ = reduce(np.logical_or, (ours[:size] != theirs[:size] for theirs in others))
            if np.count_nonzero(differ) > FEW * len(differ):
                return self
        there, kind = np.flatnonzero(differ), self.before.dtype
        before, *afters = (torch.from_numpy(bits.take(there)).view(kind) for bits in (ours, *others))
        at, places = self.at, torch.from_numpy(there)
        given = {task: (None, values) for task, values in zip(self.given, afters, strict=True)}
        return replace(self, at=places if at is None else at[places], before=before, given=given)

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write values for these places into the whole tensor."""
        if self.at is None and tensor.is_contiguous():
            write([(tensor.detach().view(-1)[self.start : self.stop], None, values)])
        else:
            write([(tensor, self.places, values)])


def require_finite(how: str, piece: Piece, values: Tensor) -> None:
    """Raise MaskError for values that are infinite or no numbers, and aren't the base's: a task's own, or what came of them."""
    if is_plain(values):
        return
    for task in piece.given:
        after = piece.after(task)
        if not bool((is_finite(after) | is_same(piece.before, after)).all()):
            raise MaskError(f"tasks.{task}: its values of {piece.name} are infinite or no numbers")
    if not bool((is_finite(values) | is_same(piece.before, values)).all()):
        raise MaskError(f"{piece.name}: the {how} of these grafts is more than {values.dtype} holds; take another rule")


def joint_region(sides: Mapping[str, TaskValues]) -> dict[str, tuple[int, ...]]:
    """The shapes of the regions of all masks together, none where all tasks are whole; MaskError if a tensor has two shapes."""
    regions = [side.mask.region for side in sides.values() if side.mask is not None]
    return reduce(Region.joined, regions).shapes if regions else {}


def warn_of_whole(sides: Mapping[str, TaskValues]) -> None:
    """Say once of the same heads and buffers of several tasks that they aren't merged."""
    tasks: dict[tuple[str, ...], list[str]] = {}
    for task, side in sides.items():
        tasks.setdefault(tuple(side.whole), []).append(task)
    for whole, theirs in tasks.items():
        if whole:
            names, named = ", ".join(theirs), whole[0] + ", ..." * (len(whole) > 1)
            LOGGER.warning("tasks.%s: heads and buffers (%s) aren't merged; the model keeps the base's", names, named)


def within_mask(weights: Tensors, values: Tensors, mask: GraftMask, whole: Sequence[str] = ()) -> TaskValues:
    """A task's values inside its mask; raises an error unless they fit the base's weights."""
    require_mask(mask, weights)
    for name in mask.indices:
        require_fit(name, outline(weights, name), outline(values, name) if name in values else None)
    return TaskValues(values, mask, cast=True, whole=whole)


def of_patch(weights: Tensors, task: str, entry: object) -> TaskValues:
    """What a patch has inside its mask; raises an error unless it is one, and its values are those of the base's types."""
    mask, values = getattr(entry, "mask", None), getattr(entry, "values", None)
    if not isinstance(mask, GraftMask) or not isinstance(values, Mapping):
        whole = (
            "; (tuned, GraftMask.full(mask.region)) merges all of a mask's region"
            if isinstance(entry, nn.Module)
            else ""
        )
        raise ParamsError(f"tasks.{task}: should be a patch or (tuned, mask), not {a_kind(entry)}{whole}")
    require_mask(mask, weights)
    for name, indices in mask.indices.items():
        if name not in values or values[name].shape != indices.shape:
            raise MaskError(f"tasks.{task}: has no {len(indices)} values for {name}")
        own, kind = values[name], outline(weights, name).dtype
        if own.dtype != kind and not bool(is_same(own.to(kind).to(own.dtype), own).all()):
            raise MaskError(
                f"tasks.{task}: its values of {name} are {own.dtype}, which the base's {kind} rounds; "
                f"pass base.to({own.dtype})"
            )
    return TaskValues(values, mask, packed=True, cast=True, whole=[*getattr(entry, "head", ())])


def pieces_of(
    name: str, pretrained: Tensors, sides: Mapping[str, TaskValues], scratch: Scratch | None = None, row: int = 16
) -> Iterator[Piece]:
    """A tensor of the base, piece by piece in order, with what those sides have of it whose mask names it; on the CPU.

    row: how many numbers stay together.
    """
    before, flat, found = outline(pretrained, name), _flat(pretrained, name), {}
    for task, side in sides.items():
        indices = None if side.mask is None else side.mask.indices.get(name)
        if side.mask is None or indices is not None:
            kind = before.dtype if side.cast else outline(side.values, name).dtype
            every = indices is None or len(indices) == before.numel()
            found[task] = None if every else indices, _flat(side.values, name), side.packed, kind
    size = max(TOGETHER * CACHED * torch.get_num_threads() // max(TOGETHER, len(found)) // row, 1) * row
    for start in range(0, before.numel(), size) if found else ():
        stop = min(start + size, before.numel())
        parts = {task: _part(start, stop, *one) for task, one in found.items()}
        at = _union([indices for indices, _ in parts.values()], stop - start)
        own = flat(start, stop).cpu()
        given = {task: (_within(at, indices), values) for task, (indices, values) in parts.items()}
        yield Piece(name, start, stop, at, own if at is None else own[at], given, scratch)


def changed_pieces(pieces: Iterator[Piece], read: bool) -> Iterator[Piece]:
    """What changed of each piece (`Piece.changed`), in order; of what is `read` from files the next ones meanwhile, in other threads."""
    if not read:
        yield from (piece.changed() for piece in pieces)
        return
    coming = deque[Future[Piece]]()
    with ThreadPoolExecutor(READERS) as beside:
        for piece in pieces:
            coming.append(beside.submit(piece.changed))
            if len(coming) > READERS:
                yield coming.popleft().result()
        yield from (one.result() for one in coming)


def in_files(tensors: Tensors) -> bool:
    """True for tensors that are read when they are asked for, a piece at a time."""
    return hasattr(tensors, "between")


def _flat(tensors: Tensors, name: str) -> Slices:
    """A tensor laid end to end, of which no more is read than is asked for."""
    if in_files(tensors):
        return partial(tensors.between, name)
    flat = tensors[name].detach().reshape(-1)
    return lambda start, stop: flat[start:stop]


def _wide(values: Tensor) -> Tensor:
    return values if is_whole(values) else widest(values)


def _part(
    start: int, stop: int, indices: Tensor | None, values: Slices, packed: bool, kind: torch.dtype
) -> tuple[Tensor | None, Tensor]:
    """Which places from `start` to `stop` one side has (None: all), counted from the start, and its values at them."""
    if indices is None:
        return None, values(start, stop).to("cpu", kind)
    low, high = torch.searchsorted(indices, torch.tensor([start, stop])).tolist()
    at = None if high - low == stop - start else indices[low:high] - start
    there = values(low, high) if packed else values(start, stop)
    return at, (there if packed or at is None else there[at.to(there.device)]).to("cpu", kind)


def _union(parts: Sequence[Tensor | None], size: int) -> Tensor | None:
    """The places that any of the sides has, rising; None for all."""
    if any(part is None for part in parts):
        return None
    if all(torch.equal(parts[0], part) for part in parts):
        return parts[0]
    marks = torch.zeros(size, dtype=torch.bool)
    for part in parts:
        marks[part] = True
    return marks.nonzero().reshape(-1)


def _within(at: Tensor | None, indices: Tensor | None) -> Tensor | None:
    """Where these places are among `at`, which has them all."""
    if at is None or indices is None:
        return indices
    return None if len(at) == len(indices) else torch.searchsorted(at, indices)
