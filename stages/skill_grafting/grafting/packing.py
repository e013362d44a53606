"""The compact form of a mask file: how far each index is from the one before it, and the values, byte by byte through zlib.

The first bytes of all numbers come before the second ones, and so on: those that hardly vary, such as exponents, lie together then.
"""

import zlib

import torch
from torch import Tensor

from .region import Tensors


def packed(values: Tensor) -> Tensor:
    """A row of numbers of any type as a stream, uint8; equal bits give equal bytes."""
    planes = values.contiguous().view(torch.uint8).view(-1, values.itemsize).T
    return torch.frombuffer(bytearray(zlib.compress(planes.contiguous().numpy().tobytes(), 6)), dtype=torch.uint8)


def unpacked(stream: Tensor, kind: torch.dtype, most: int) -> Tensor:
    """The row of numbers of a stream; raises ValueError for a damaged one, or for more than `most` numbers."""
    reader, size = zlib.decompressobj(), kind.itemsize
    try:
        found = reader.decompress(stream.numpy().tobytes(), most * size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) > most * size or len(found) % size or not reader.eof or reader.unused_data:
        raise ValueError(f"a stream of no row of at most {most} numbers of {kind}")
    planes = (
        torch.frombuffer(bytearray(found), dtype=torch.uint8).view(size, -1)
        if found
        else torch.empty(size, 0, dtype=torch.uint8)
    )
    return planes.T.contiguous().view(-1).view(kind)


def pack(indices: Tensors, values: Tensors) -> dict[str, Tensor]:
    """The streams of rising indices (int64) and of the values at them, under their names in a file."""
    gaps = {f"gaps/{name}": packed(at.diff(prepend=at.new_zeros(1))) for name, at in indices.items()}
    return gaps | {f"packed/{name}": packed(values[name]) for name in values}


def unpack(gaps: Tensors, streams: Tensors, kinds: dict[str, str], most: int) -> tuple[Tensors, Tensors]:
    """Indices and values of streams; kinds: the type of each value; raises ValueError or AttributeError for what is damaged."""
    indices = {name: unpacked(gaps[name], torch.int64, most).cumsum(0) for name in gaps}
    values = {name: unpacked(streams[name], getattr(torch, kinds[name]), len(indices[name])) for name in streams}
    return indices, values
