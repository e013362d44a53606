"""Mask files, which are enough to rebuild a graft from the pretrained model.

A mask file is one safetensors file with, for each tensor that has a selected parameter, `indices/<name>` (flat indices,
int32, or int64 in tensors of 2^31 and more) and `values/<name>` (the fine-tuned values there), and `head/<name>` for a
trained head, which has no pretrained values to be grafted onto.  Its header names the region, the model (with a
fingerprint), the task, the seed, k, both denominators and the rule.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .mask import GraftMask
from .mask_writing import named_indices, write_tensors
from .region import Tensors


@dataclass(frozen=True)
class StoredMask:
    """A mask with the values it selects, the trained head if there is one, and where it comes from."""

    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]
    about: dict[str, Any]


def write_mask(path: Path, stored: StoredMask) -> None:
    """Write a mask file; equal masks give equal bytes."""
    tensors = named_tensors(stored.mask, stored.values, stored.head)
    write_tensors(path, stored.mask.region, tensors, stored.about)


def named_tensors(mask: GraftMask, values: Tensors, head: Tensors) -> dict[str, Tensor]:
    """Indices, values at them, and a head under the names that they have in a file."""
    heads = {f"head/{name}": whole.contiguous() for name, whole in head.items()}
    return (
        heads
        | named_indices(mask.region, mask.indices)
        | {f"values/{name}": values[name].contiguous() for name in mask.indices}
    )
