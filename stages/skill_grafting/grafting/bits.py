"""Tensors as their bits: where two differ, signs of zeros and the payloads of NaNs included."""

import torch
from torch import Tensor

# whole numbers of as many bytes as a number of a tensor has, by which bits are compared
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# numbers of a tensor that are compared at once
PIECE = 2**22


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
    return flat.view(BITS[flat.itemsize])
