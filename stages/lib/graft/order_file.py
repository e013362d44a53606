"""The stored order of parameters by movement: one safetensors file, region indices, furthest first."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..digest import KEY, UNSEALED, require_sealed, seal
from ..errors import MaskError
from ..io import replacing
from .mask_file import INT32_LIMIT


def write_order(path: Path, order: Tensor, region_size: int, about: dict[str, Any]) -> None:
    """Write region indices, most moved first, with a header about where they come from."""
    dtype = torch.int32 if region_size < INT32_LIMIT else torch.int64
    header = {**about, **UNSEALED, "graftable": region_size, "stored": len(order)}
    with replacing(path) as partial:
        save_file({"order": order.to(dtype)}, partial, metadata={"movement": json.dumps(header, sort_keys=True)})
        seal(partial)


def read_order(path: Path) -> tuple[Tensor, dict[str, Any]]:
    """The order (int64) and its header; raises MaskError if the file is missing or damaged."""
    if not path.exists():
        raise MaskError(f"{path}: no such order; `dvc repro` makes it")
    try:
        require_sealed(path)
        with safe_open(path, framework="pt") as file:
            order, about = file.get_tensor("order"), json.loads(file.metadata()["movement"])
        del about[KEY]
        stored, graftable = about["stored"], about["graftable"]
        if {type(stored), type(graftable)} != {int} or order.dtype not in (torch.int32, torch.int64):
            raise TypeError("its numbers are not whole")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise MaskError(f"{path}: damaged: {error}") from error
    order = order.to(torch.int64)
    ordered = order.sort().values
    if (
        order.shape != (stored,)
        or bool((ordered[1:] == ordered[:-1]).any())
        or (stored and not 0 <= int(ordered[0]) <= int(ordered[-1]) < graftable)
    ):
        raise MaskError(f"{path}: damaged: is not {stored} different numbers within 0..{graftable - 1}")
    return order, about
