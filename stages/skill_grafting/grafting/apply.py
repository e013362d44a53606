"""Grafting itself (paper, equation 1): fine-tuned values inside the mask, pretrained ones outside.

Values are copied, never recomputed from a difference, so a graft of everything is the fine-tuned
model bit for bit, and a graft of nothing the pretrained one.
"""

from functools import cache, reduce

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Tensors

# types in which torch sets no single numbers, and those of the same bits in which it does
AS_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
# a parameter or buffer of a model, flat indices in it (None: all of it), and values for these
Places = list[tuple[Tensor, Tensor | None, Tensor]]


def graft(pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region: new tensors, one for each name of the region; the inputs stay as they are."""
    return transplant(pretrained, values_at(finetuned, mask), mask)


def graft_into(weights: Tensors, pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> None:
    """Set live weights to the graft of a mask, in place and on their device."""
    live = {name: weights[name].data for name in mask.region.shapes}
    put_all(live, pretrained)
    for name, indices in mask.indices.items():
        put_at(live[name], indices, take_at(finetuned[name], indices))


def put_all(tensors: Tensors, values: Tensors) -> None:
    """Overwrite tensors with the values of their names."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def take_at(tensor: Tensor, indices: Tensor) -> Tensor:
    """A copy of the values at flat indices, whatever the tensor's layout in memory."""
    return tensor.detach().reshape(-1)[indices.to(tensor.device)]


def put_at(tensor: Tensor, indices: Tensor, values: Tensor) -> None:
    """Set the values at flat indices in place, on the tensor's device and in its dtype, whatever its layout in memory."""
    at, values = indices.to(tensor.device), values.to(tensor)
    if tensor.dtype in AS_BITS:
        tensor, values = (one.view(AS_BITS[tensor.dtype]) for one in (tensor, values))
    if tensor.is_contiguous():
        tensor.view(-1)[at] = values
    else:  # a view would be of a copy
        tensor[torch.unravel_index(at, tensor.shape)] = values


def write(places: Places) -> None:
    """Write the values, on each tensor's device and in its dtype."""
    for tensor, at, values in places:
        # outside of inference mode torch counts writes, and so refuses gradients of values that are gone
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if at is not None:
                put_at(tensor.detach(), at, values)
            elif tensor.shape == values.shape:
                tensor.copy_(values)
            else:  # a head of another size
                tensor.data = values.to(tensor).clone()


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


class Room:
    """Memory for what is forgotten soon and made again piece by piece: new memory costs more than the arithmetic in it."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, use: str, like: Tensor, kind: torch.dtype) -> Tensor:
        """A tensor of the shape of `like` and any values; the next one for the same use lies in the same memory."""
        kept, count = self._kept.get(use), like.numel()
        if kept is None or len(kept) < count or kept.dtype != kind or kept.device != like.device:
            kept = self._kept[use] = torch.empty(count, dtype=kind, device=like.device)
        return kept if kept.shape == like.shape else kept[:count].view(like.shape)


def difference(
    before: Tensor, after: Tensor, wide: bool = False, room: Room | None = None, use: str = "difference"
) -> Tensor:
    """after - before, a tensor of its own or in the `room`; in float64 if `wide` or of whole numbers.

    0 where both are the same infinity or NaN.
    """
    moved = subtracted(before, after, wide, room, use)
    if not is_plain(moved):
        moved.masked_fill_(is_same(before, after.to(before.device)), 0)
    return moved


def subtracted(
    before: Tensor, after: Tensor, wide: bool = False, room: Room | None = None, use: str = "difference"
) -> Tensor:
    """`difference`, but NaN where both are the same infinity or NaN."""
    after = after.to(before.device)
    if is_whole(before):  # exact far beyond what a float64 holds
        return (after.long() - before.long()).double()
    kind = _kind(before.dtype, after.dtype, wide)
    if room is None:
        return after.to(kind) - before.to(kind)
    moved = room(use, before, kind)
    if before.dtype == after.dtype == kind:
        return torch.sub(after, before, out=moved)
    return moved.copy_(after).sub_(exact(before))


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


def values_at(tensors: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The values a mask selects: name -> shape (number selected there,), a copy."""
    return {name: take_at(tensors[name], indices) for name, indices in mask.indices.items()}


def transplant(pretrained: Tensors, values: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region from the selected values alone, without the fine-tuned model."""
    grafted = {}
    for name in mask.region.shapes:
        grafted[name] = pretrained[name].detach().clone(memory_format=torch.contiguous_format)
        if name in mask.indices:
            put_at(grafted[name], mask.indices[name], values[name])
    return grafted
