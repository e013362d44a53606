"""Which model some tensors are of: SHA-256 of what they hold.

It takes nearly all of the time in which a patch is put on a model, so this process remembers it.  Not by the model, whose numbers
anybody may change by hand, nor by its file: by sums over all of its numbers, which cost a reading of them and are made each time.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from .region import Region, Tensors

# sums of a model's numbers -> its fingerprint
KNOWN: dict[bytes, str] = {}
# words of eight bytes in a row of the table whose rows and columns are summed, and rows that are summed together (512 KiB)
WORDS, ROWS = 1024, 64
Take = Callable[[bytes | np.ndarray], object]


def fingerprint(region: Region, tensors: Tensors) -> str:
    """SHA-256 over names, shapes and exact values, those of narrow types in float32; it distinguishes models."""
    sums = _digest(region, tensors, _take_sums).digest()
    if sums not in KNOWN:
        KNOWN[sums] = _digest(region, tensors, _take_values).hexdigest()
    return KNOWN[sums]


def _digest(region: Region, tensors: Tensors, take_all: Callable[[torch.Tensor, Take], None]) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for name, shape in region.shapes.items():
        digest.update(f"{name}{list(shape)}".encode())
        take_all(tensors[name].detach().cpu(), digest.update)
    return digest


def _take_values(values: torch.Tensor, take: Take) -> None:
    wide = values.float() if values.itemsize < 4 and values.is_floating_point() else values
    take(wide.contiguous().reshape(-1).numpy())


def _take_sums(values: torch.Tensor, take: Take) -> None:
    """The sums of the rows and of the columns of the bytes as a table of words: no number changes, nor do two change places, unseen."""
    take(str(values.dtype).encode())
    flat = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    whole = len(flat) - len(flat) % (8 * WORDS)
    table, columns = flat[:whole].view(np.uint64).reshape(-1, WORDS), np.zeros(WORDS, np.uint64)
    for start in range(0, len(table), ROWS):
        part = table[start : start + ROWS]
        columns += part.sum(0)
        take(part.sum(1))
    take(columns)
    take(flat[whole:])
