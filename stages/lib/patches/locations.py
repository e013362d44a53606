"""Where the commands read and write: what a given path means, and what may be written to."""

import os
from pathlib import Path

from ..errors import MaskError, StorageError
from ..io import PARTIAL, require_permission

COMMAND = "graft"
# where a project that a command runs in has its model
PRETRAINED = Path("models/pretrained")
PATCH = "patch.safetensors"
CARD = "README.md"
CONFIG = "config.json"
# how a graft can leave the project
MODEL, AS_PATCH, PEFT, WHOLE_DELTA, SPARSE_DELTA = "model", "patch", "peft", "delta", "sparse-delta"
# bytes, on the file systems that there are
LONGEST_NAME = 255
FORMS = (MODEL, AS_PATCH, PEFT, WHOLE_DELTA, SPARSE_DELTA)


def mask_at(path: Path) -> Path:
    """The file of a mask, or of a patch that is given by its folder; raises MaskError if there is none."""
    file = path / PATCH if path.is_dir() else path
    if not file.is_file():
        raise MaskError(f"{file}: no such mask or patch")
    require_permission(file)
    return file


def free(target: Path, for_file: bool = False) -> Path:
    """The absolute path of a place to write to; raises StorageError if it is taken (by more than an empty folder) or no place.

    What has its name with `.partial` is in the way too: writing would replace it, be it of a killed command or the user's own.
    """
    target = Path(os.path.normpath(target.absolute()))  # `new/..` is a folder that is there
    file = next((folder for folder in target.parents if folder.exists() and not folder.is_dir()), None)
    if file:
        raise StorageError(f"{target}: can't be written, as {file} is not a folder")
    partial = Path(f"{target}{PARTIAL}")
    if len(os.fsencode(partial.name)) > LONGEST_NAME:
        raise StorageError(f"{target}: can't be written, as its name is too long")
    if os.path.lexists(partial):
        raise StorageError(f"{target}: can't be written, as {partial} is there; remove it or choose another name")
    empty = not for_file and target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if os.path.lexists(target) and not empty:
        raise StorageError(f"{target}: is there already; remove it or choose another name")
    return target
