"""Header and indices of a mask file, read without the seconds that torch takes to load."""

import json
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from stages.lib.errors import MaskError

FORMAT = "graft-mask"
VERSION = 1


@dataclass(frozen=True)
class MaskIndices:
    """Shapes of the region's tensors, in its order, and the flat indices selected in each."""

    shapes: dict[str, tuple[int, ...]]
    indices: dict[str, np.ndarray]

    @property
    def graftable(self) -> int:
        """Number of parameters of the region."""
        return sum(map(prod, self.shapes.values()))

    def region_indices(self) -> np.ndarray:
        """Sorted indices over all tensors laid end to end, int64."""
        starts = dict(zip(self.shapes, [0, *accumulate(map(prod, self.shapes.values()))], strict=False))
        parts = [self.indices[name].astype(np.int64) + starts[name] for name in self.shapes if name in self.indices]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def read_header(path: Path) -> dict[str, Any]:
    """What a mask file says about itself, without its tensors; raises MaskError."""
    if not path.exists():
        raise MaskError(f"{path}: no such mask; `dvc repro` makes it")
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {}).get("graft", "null"))
    except (SafetensorError, json.JSONDecodeError) as error:
        raise MaskError(f"{path}: damaged: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise MaskError(f"{path}: not a mask file")
    if about.get("version") != VERSION:
        raise MaskError(f"{path}: format version {about.get('version')}, this program reads {VERSION}")
    return about


def read_indices(path: Path) -> MaskIndices:
    """Indices and shapes of a mask file; raises MaskError if it is missing or damaged."""
    header = read_header(path)
    try:
        with safe_open(path, framework="np") as file:
            names = [key for key in file.keys() if key.startswith("indices/")]  # noqa: SIM118 - not a dict
            indices = {key.removeprefix("indices/"): file.get_tensor(key) for key in names}
        return MaskIndices({name: tuple(shape) for name, shape in header["shapes"].items()}, indices)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MaskError(f"{path}: damaged: {error}") from error
