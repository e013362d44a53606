"""Writing of mask files (see mask_file.py); those who only read their headers import no torch for it."""

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..writing import replacing
from .region import Region, Tensors

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "graft-mask"
VERSION = 2
# largest tensor whose indices are stored in four bytes
INT32_LIMIT = 2**31


def named_indices(region: Region, indices: Tensors) -> "dict[str, Tensor]":
    """The indices of a mask under the names that they have in a file."""
    import torch

    small = {name: prod(region.shapes[name]) < INT32_LIMIT for name in indices}
    return {f"indices/{name}": at.to(torch.int32 if small[name] else torch.int64) for name, at in indices.items()}


def write_tensors(path: Path, region: Region, tensors: Tensors, about: dict[str, Any]) -> None:
    """Write a mask file of these tensors, which may be its indices alone; equal ones give equal bytes."""
    from safetensors.torch import save_file

    selected = sum(len(indices) for name, indices in tensors.items() if name.startswith("indices/"))
    header = {**about, "format": FORMAT, "version": VERSION, "selected": selected}
    header |= {"graftable": region.size, "sparsity": selected / region.size}
    header["shapes"] = {name: list(shape) for name, shape in region.shapes.items()}
    # only the top level is sorted: the order of `shapes` is the order of the region
    metadata = {"graft": json.dumps(dict(sorted(header.items())))}
    with replacing(path) as partial:
        save_file(tensors, partial, metadata=metadata)
