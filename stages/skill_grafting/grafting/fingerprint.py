"""Which model some tensors are of: SHA-256 of what they hold.

It takes nearly all of the time in which a patch is put on a model, so this process remembers it.  Not by the model, whose numbers
anybody may change by hand, nor by its file: by a faster hash of all of its bytes (XXH3, 128 bits), which costs a reading of them and
is made each time.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
import xxhash

from .region import Region, Tensors

# the faster hash of a model's bytes -> its fingerprint
KNOWN: dict[bytes, str] = {}
Take = Callable[[bytes | np.ndarray], object]


def fingerprint(region: Region, tensors: Tensors) -> str:
    """SHA-256 over names, shapes and exact values, those of narrow types in float32; it distinguishes models."""
    fast, exact = xxhash.xxh3_128(), hashlib.sha256()
    _take(region, tensors, _take_bytes, fast.update)
    if (known_by := fast.digest()) not in KNOWN:
        _take(region, tensors, _take_values, exact.update)
        KNOWN[known_by] = exact.hexdigest()
    return KNOWN[known_by]


def _take(region: Region, tensors: Tensors, take_all: Callable[[torch.Tensor, Take], None], take: Take) -> None:
    for name, shape in region.shapes.items():
        take(f"{name}{list(shape)}".encode())
        take_all(tensors[name].detach().cpu(), take)


def _take_values(values: torch.Tensor, take: Take) -> None:
    wide = values.float() if values.itemsize < 4 and values.is_floating_point() else values
    take(wide.contiguous().reshape(-1).numpy())


def _take_bytes(values: torch.Tensor, take: Take) -> None:
    take(str(values.dtype).encode())
    take(values.contiguous().reshape(-1).view(torch.uint8).numpy())
