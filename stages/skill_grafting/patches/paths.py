"""Files and forms that the commands write, and the places that they may write to; read without heavy libraries."""

import os
from pathlib import Path

from ..errors import StorageError
from ..io import PARTIAL

PATCH, CARD, CONFIG = "patch.safetensors", "README.md", "config.json"
# how a graft can leave the project
MODEL, AS_PATCH, PEFT = "model", "patch", "peft"
FORMS = {
    MODEL: "a whole model",
    AS_PATCH: "a patch",
    PEFT: "an adapter that peft loads",
}
# the model of a project that a command runs in
PRETRAINED = Path("models/pretrained")
# bytes, on the file systems that there are
LONGEST_NAME = 255


def free(target: Path, for_file: bool = False) -> Path:
    """The absolute path of a place to write to; raises StorageError if it is taken (by more than an empty folder) or no place.

    What has its name with `.partial` is in the way too: writing would replace it, be it of a killed command or the user's own.
    """
    target = Path(os.path.normpath(target.absolute()))  # `new/..` is a folder that is there
    partial = Path(f"{target}{PARTIAL}")
    if file := next((folder for folder in target.parents if folder.exists() and not folder.is_dir()), None):
        raise StorageError(f"{target}: can't be written, as {file} is not a folder")
    if len(os.fsencode(partial.name)) > LONGEST_NAME:
        raise StorageError(f"{target}: can't be written, as its name is too long")
    if os.path.lexists(partial):
        raise StorageError(f"{target}: can't be written, as {partial} is there; remove it or choose another name")
    empty = not for_file and target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if os.path.lexists(target) and not empty:
        raise StorageError(f"{target}: is there already; remove it or choose another name")
    return target
