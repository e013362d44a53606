"""What is written into a model: parameters, indices in them and values; for good, or inside `with` and then put back bit for bit.

Grafts in place and patches on live models are both `swapped`.  Swaps are for one thread at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..grafting.apply import Writes, take_at, write
from ..grafting.region import unwrapped
from ..support.errors import ModelError, one_line

# model -> the swaps that it is in, the latest last
SWAPS: WeakKeyDictionary[nn.Module, "list[Swap]"] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Swap:
    """What is on a model, a patch or the mask of a graft, and the values beneath it."""

    what: object
    before: Writes


def active(model: nn.Module) -> list[Any]:
    """What is on a model just now: patches (`Patch.on`) and the masks of grafts (`grafted`), the outermost first."""
    return [swap.what for swap in SWAPS.get(unwrapped(model), [])]


def read(writes: Writes) -> Writes:
    """The same writes with their current values."""
    return [(tensor, at, tensor.detach().clone() if at is None else take_at(tensor, at)) for tensor, at, _ in writes]


@contextmanager
def swapped(model: nn.Module, writes: Writes, what: object = None) -> Iterator[nn.Module]:
    """The model with the values of `what` in it inside `with`; afterwards they and all buffers are as before, bit for bit, whatever happened.

    A parameter or buffer that was replaced inside comes back as the object that it was, a buffer of another shape with its own, and
    an exception of the caller's is the one that leaves.  What is done inside to other parameters stays done, and a model that was
    moved to another device or turned into another dtype stays there.  Swaps may be nested: the inner one lies on the outer one.
    Raises ModelError if swaps end in another order than they are nested in, or if something can't be put back.
    """
    before, kept = read(writes), _Kept.of(model, writes)
    swap, swaps = Swap(what, before), SWAPS.setdefault(model, [])
    swaps.append(swap)
    left = False
    try:
        write(writes)
        yield model
        left = True
    finally:
        problems = kept.put_back(before)
        if swaps.pop() is not swap:
            problems.append("swaps ended in another order than `with` nests them")
        if problems and left:
            raise ModelError(f"{problems[0]}: load the {type(model).__name__} anew")


@contextmanager
def unswapped(model: nn.Module) -> Iterator[None]:
    """The model as it is beneath all swaps that it is in."""
    taken_off: list[Writes] = []
    try:
        for swap in reversed(SWAPS.get(model, [])):
            taken_off.append(read(swap.before))
            write(swap.before)
        yield
    finally:
        for writes in reversed(taken_off):
            write(writes)


@dataclass(frozen=True)
class _Kept:
    """How a model was: its parts by name, where each swapped tensor stands, the kinds of its parameters, and its buffers with copies.

    `memory`: each swapped tensor, and what it was in.
    """

    model: nn.Module
    parts: dict[str, nn.Module]
    slots: list[tuple[str, str, Tensor]]
    memory: dict[Tensor, Tensor]
    kinds: list[tuple[Tensor, torch.dtype, torch.device]]
    buffers: list[tuple[nn.Module, str, Tensor | None, Tensor | None]]

    @classmethod
    def of(cls, model: nn.Module, writes: Writes) -> "_Kept":
        memory = {tensor: tensor.detach() for tensor, _, _ in writes}
        buffers = [
            (part, name, buffer, None if buffer is None else buffer.detach().clone())
            for part in model.modules()
            for name, buffer in part._buffers.items()
        ]
        kinds = [(weight, weight.dtype, weight.device) for weight in model.parameters()]
        parts = dict(model.named_modules(remove_duplicate=False))
        return cls(model, parts, [slot for slot in _slots(parts) if slot[2] in memory], memory, kinds, buffers)

    def put_back(self, before: Writes) -> list[str]:
        """Everything that there was; gives what can't be put back, which keeps nothing else from it."""
        acts = [(self._put_values, place) for place in before]
        acts += [(self._put_weights, ())] + [(self._put_buffer, buffer) for buffer in self.buffers]
        problems = []
        for act, of in acts:
            try:
                act(*of)
            except (RuntimeError, TypeError, IndexError) as error:
                problems.append(one_line(error))
        return problems

    def _put_values(self, tensor: Tensor, at: Tensor | None, values: Tensor) -> None:
        if tensor.shape != self.memory[tensor].shape:
            tensor.data = self.memory[tensor]
        write([(tensor, at, values)])

    def _put_weights(self) -> None:
        """Parameters that were replaced, or whose part was, come back; what is a part of something new now (pruning) stays there."""
        now = dict(self.model.named_modules(remove_duplicate=False))
        gone = [
            (name, local, weight)
            for name, local, weight in self.slots
            if now.get(name) is not self.parts[name] or dict(self.parts[name]._parameters).get(local) is not weight
        ]
        known = {(self.parts[name], local) for name, local, _ in self.slots}
        elsewhere = {weight for name, local, weight in _slots(now) if (now[name], local) not in known} if gone else ()
        for name, local, weight in gone:
            if weight not in elsewhere:
                self._put_part(name)
                self.parts[name]._parameters[local] = weight

    def _put_part(self, name: str) -> None:
        parent, _, local = name.rpartition(".")
        if name:
            self._put_part(parent)
            self.parts[parent]._modules[local] = self.parts[name]

    def _put_buffer(self, part: nn.Module, name: str, buffer: Tensor | None, values: Tensor | None) -> None:
        if buffer is not None:
            now = dict(part._buffers).get(name)  # a ScriptModule's have no get
            if (buffer.shape, buffer.dtype, buffer.device) != (values.shape, values.dtype, values.device):
                buffer.data = values
            write([(buffer, None, values)])
            if now is not None and self._was_turned(values, now):
                buffer = buffer.to(now.device, now.dtype)
        part._buffers[name] = buffer

    def _was_turned(self, before: Tensor, now: Tensor) -> bool:
        """True for a buffer of another kind now if a parameter went the same way: the caller moved or turned the model."""
        ways = {(kind, weight.dtype, device, weight.device) for weight, kind, device in self.kinds}
        turned = before.dtype != now.dtype and (before.dtype, now.dtype) in {way[:2] for way in ways}
        moved = before.device != now.device and (before.device, now.device) in {way[2:] for way in ways}
        return moved or turned


def _slots(parts: dict[str, nn.Module]) -> Iterator[tuple[str, str, Tensor]]:
    """Where each parameter stands: name of the part, its own name there."""
    for name, part in parts.items():
        for local, weight in part._parameters.items():
            if weight is not None:
                yield name, local, weight
