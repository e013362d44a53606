"""Tensor files as the project writes them, with any content, bits that a disk lost, and model folders with other content."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import torch as tensor_files
from safetensors.numpy import save_file
from torch import Tensor

from skill_grafting.digest import UNSEALED, seal
from skill_grafting.grafting.mask_file import StoredMask
from skill_grafting.patches.patch_file import PatchMetadata
from skill_grafting.patches.patch_file import read_patch as read_patch_file


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


def set_config(folder: Path, file: str = "config.json", **changes: object) -> None:
    """Other values in a file of a model's folder."""
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Edit the weights of a model's folder, whose digests are gone then."""
    tensors = tensor_files.load_file(folder / "model.safetensors")
    edit(tensors)
    tensor_files.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "SHA256SUMS").unlink(missing_ok=True)


def change_one_value(folder: Path, name: str) -> None:
    """Another model, which differs in one number."""
    edit_tensors(folder, lambda tensors: tensors[name].view(-1)[7].add_(1e-3))


def read_patch(path: Path) -> tuple[StoredMask, PatchMetadata]:
    """A patch, and how it is used."""
    patch = read_patch_file(path)
    return patch.stored, patch.use
