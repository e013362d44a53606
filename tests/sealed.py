"""Tensor files as the project writes them, with any content, and bits that a disk lost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from stages.lib.digest import UNSEALED, seal


def save_sealed(path: Path, tensors: dict[str, np.ndarray], header: Any, key: str = "graft") -> None:
    """A file with a right digest, whatever else it says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={key: json.dumps({**header, **UNSEALED})})
    seal(path)


def flip_bit(path: Path, place: int) -> None:
    """Change one bit of a file, and nothing else about it."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
