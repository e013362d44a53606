"""Tensor files as the project writes them, with any content, and bits that a disk lost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from stages.lib.digest import UNSEALED, seal
from stages.lib.graft.mask_file import StoredMask
from stages.lib.patches.build_patch import Use, read_graft, use_of


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


def read_patch(path: Path) -> tuple[StoredMask, Use]:
    """A patch, and how it is used."""
    stored = read_graft(path)
    return stored, use_of(path, stored)
