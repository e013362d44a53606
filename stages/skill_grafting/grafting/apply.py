"""Grafting itself (paper, equation 1): fine-tuned values inside the mask, pretrained ones outside.

Values are copied, never recomputed from a difference, so a graft of everything is the fine-tuned
model bit for bit, and a graft of nothing the pretrained one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Tensors

# types in which torch sets no single numbers, and those of the same bits in which it does
AS_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
# a parameter or buffer of a model, flat indices in it (None: all of it), and values for these
Writes = list[tuple[Tensor, Tensor | None, Tensor]]


def graft(pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region: new tensors, one for each name of the region; the inputs stay as they are."""
    return transplant(pretrained, values_at(finetuned, mask), mask)


def graft_into(weights: Tensors, pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> None:
    """Set live weights to the graft of a mask, in place and on their device."""
    put_all({name: weights[name] for name in mask.region.shapes}, pretrained)
    write((weights[name], indices, take_at(finetuned[name], indices)) for name, indices in mask.indices.items())


def put_all(weights: Tensors, values: Tensors) -> None:
    """Overwrite live weights with the values of their names."""
    write((weight, None, values[name]) for name, weight in weights.items())


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


def write(writes: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
    """Write the values, on each tensor's device and in its dtype; all writes to live weights are this one."""
    for tensor, at, values in writes:
        # outside of inference mode torch counts writes, and so refuses gradients of values that are gone
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if at is not None:
                put_at(tensor.detach(), at, values)
            elif tensor.shape == values.shape:
                tensor.copy_(values)
            else:  # a head of another size
                tensor.data = values.to(tensor).clone()
    torch.clear_autocast_cache()  # within autocast torch would go on with casts of the values before


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """True if every number of the narrow type is one of the wide type, both of floating-point or both complex numbers."""
    if wide == narrow or wide.is_complex != narrow.is_complex or not (wide.is_complex or wide.is_floating_point):
        return wide == narrow
    if not (narrow.is_complex or narrow.is_floating_point):
        return False
    one, other = torch.finfo(wide), torch.finfo(narrow)
    return one.bits > other.bits and one.eps <= other.eps and one.max >= other.max and one.tiny <= other.tiny


def values_at(tensors: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The values a mask selects: name -> shape (number selected there,), a copy."""
    return {name: taken(tensors, name, indices) for name, indices in mask.indices.items()}


def taken(tensors: Tensors, name: str, indices: Tensor) -> Tensor:
    """`take_at` of a tensor by its name; of one that can be read in parts no more than these."""
    return tensors.take(name, indices) if hasattr(tensors, "take") else take_at(tensors[name], indices)


def transplant(pretrained: Tensors, values: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region from the selected values alone, without the fine-tuned model."""
    grafted = {}
    for name in mask.region.shapes:
        grafted[name] = pretrained[name].detach().clone(memory_format=torch.contiguous_format)
        if name in mask.indices:
            put_at(grafted[name], mask.indices[name], values[name])
    return grafted
