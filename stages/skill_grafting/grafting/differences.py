"""How far numbers of any type moved, what numbers they are, and where their bits differ.

What counts as moved: a number that isn't the base's, once the base's is rounded as the fine-tuned one was (`precisions`, `rounded_to`).
Somebody who trains a float32 model in bfloat16 rounds all of it, and rounding is no movement.
"""

from collections.abc import Collection
from functools import cache, reduce

import torch
from torch import Tensor

from .apply import holds
from .region import Tensors, outline
from .select import Scratch, bits, pieces_of

# types that models are trained or kept in for their size
NARROW = (torch.bfloat16, torch.float16)
# how many numbers of a tensor are looked at before all are
FIRST = 4096
# numbers of a tensor that are compared at once
PIECE = 2**22


def precisions(finetuned: Tensors, body: Collection[str]) -> dict[str, torch.dtype]:
    """The type that each of the fine-tuned tensors has the precision of, by name: its own, or a narrower one that it was saved wider than.

    That is bfloat16 or float16 if it holds each number of all the wide tensors of the `body`, which are the parameters without heads:
    models are rounded as a whole, and one tensor may fit by chance.
    """
    kinds = {name: outline(finetuned, name).dtype for name in finetuned}
    wide = [name for name in body if name in kinds and kinds[name].is_floating_point and kinds[name].itemsize >= 4]
    narrow = next((kind for kind in NARROW if wide and all(_fits(finetuned, name, kind) for name in wide)), None)
    return kinds if narrow is None else kinds | dict.fromkeys(wide, narrow)


def rounded_to(values: Tensor, kind: torch.dtype | None) -> Tensor:
    """The values rounded to a type's precision, in a type that holds them; themselves if it holds theirs."""
    if kind is None or not values.is_floating_point() or not kind.is_floating_point or holds(kind, values.dtype):
        return values
    return values.to(kind).to(values.dtype if holds(values.dtype, kind) else torch.float32)


def _fits(finetuned: Tensors, name: str, kind: torch.dtype) -> bool:
    parts = (part for (piece,) in pieces_of(name, finetuned) for part in (piece.reshape(-1)[:FIRST], piece))
    return all(torch.equal(part.to(kind).to(part.dtype), part) for part in parts)


def is_same(first: Tensor, second: Tensor) -> Tensor:
    """Where two tensors are equal, NaN and NaN included; bool."""
    return (first == second) | (first.isnan() & second.isnan())


def is_equal(first: Tensor, second: Tensor) -> bool:
    """`torch.equal`, of types that it doesn't compare, too: those of eight bits by their bits."""
    if first.is_floating_point() and first.itemsize == 1 and first.dtype == second.dtype:
        first, second = first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    return torch.equal(first, second)


def is_finite(values: Tensor) -> Tensor:
    """Where values are finite numbers; bool."""
    return torch.isfinite(values.float() if values.itemsize == 1 and values.is_floating_point() else values)


def is_plain(values: Tensor) -> bool:
    """True if all values are finite numbers; false, too, for some whose sum is more than their type holds."""
    values = values.float() if values.is_floating_point() and values.itemsize == 1 else values
    return bool(torch.isfinite(values.sum()))  # read faster than each


def difference(
    before: Tensor, after: Tensor, wide: bool = False, scratch: Scratch | None = None, use: str = "difference"
) -> Tensor:
    """after - before, a tensor of its own or in `scratch`; in float64 if `wide` or of whole numbers.

    0 where both are the same infinity or NaN.
    """
    moved = subtracted(before, after, wide, scratch, use)
    if not is_plain(moved):
        moved.masked_fill_(is_same(before, after.to(before.device)), 0)
    return moved


def subtracted(
    before: Tensor, after: Tensor, wide: bool = False, scratch: Scratch | None = None, use: str = "difference"
) -> Tensor:
    """`difference`, but NaN where both are the same infinity or NaN."""
    after = after.to(before.device)
    if is_whole(before):
        return _subtracted_whole(before, after)
    kind = _kind(before.dtype, after.dtype, wide)
    if scratch is None:
        return after.to(kind) - before.to(kind)
    moved = scratch(use, before, kind)
    if before.dtype == after.dtype == kind:
        return torch.sub(after, before, out=moved)
    return moved.copy_(after).sub_(
        before if before.itemsize > 1 else exact(before)
    )  # torch subtracts none of eight bits


def _subtracted_whole(before: Tensor, after: Tensor) -> Tensor:
    """The difference of whole numbers, exact far beyond what a float64 holds of each; of those so far apart that it wraps around, rounded."""
    exactly = (after.long() - before.long()).double()
    if before.itemsize < 8:
        return exactly
    roughly = after.double() - before.double()
    return torch.where(roughly.abs() < 2.0**62, exactly, roughly)


@cache
def _kind(before: torch.dtype, after: torch.dtype, wide: bool) -> torch.dtype:
    """The type in which numbers of these are subtracted."""
    kinds = [exact(torch.empty(0, dtype=kind)).dtype for kind in (before, after)]
    return reduce(torch.promote_types, [*kinds, torch.float64] if wide else kinds)


def is_whole(values: Tensor) -> bool:
    """True for whole numbers, and true and false."""
    return not (values.is_floating_point() or values.is_complex())


def widest(values: Tensor) -> Tensor:
    """In float64, or complex128."""
    return values.to(torch.complex128) if values.is_complex() else values.double()


def exact(values: Tensor) -> Tensor:
    """As a type in which differences aren't rounded to the last digits of a narrower one, and whole numbers don't wrap around."""
    if values.is_floating_point() and values.itemsize < 4:
        return values.float()
    return values.double() if is_whole(values) else values


def places_of_change(before: Tensor, after: Tensor) -> Tensor:
    """Sorted flat indices of the numbers whose bits differ, int64, on the CPU; both tensors have one shape and type."""
    found = []
    pairs = zip(as_bits(before).split(PIECE), as_bits(after).to(before.device).split(PIECE), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        if not torch.equal(ours, theirs):
            differ = (ours != theirs).any(1) if ours.dim() > 1 else ours != theirs
            found.append(differ.nonzero().reshape(-1).cpu() + number * PIECE)
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def as_bits(values: Tensor) -> Tensor:
    """The bits of a tensor's numbers as whole numbers, in one row; numbers of 16 bytes take two columns."""
    flat = values.detach().contiguous().reshape(-1)
    if flat.itemsize == 16:
        return torch.view_as_real(flat).view(torch.int64)
    return bits(flat)
