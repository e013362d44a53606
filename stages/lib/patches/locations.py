"""Where the commands read and write: what a given path means, and what may be written to."""

from pathlib import Path

from ..errors import MaskError, StorageError

# how the command is called: installed with the package `skill_grafting`, or in the project
COMMAND = "python -m stages.commands.graft" if __package__.startswith("stages.") else "graft"
PATCH = "patch.safetensors"
CARD = "README.md"
CONFIG = "config.json"
# how a graft can leave the project
MODEL, AS_PATCH, PEFT, WHOLE_DELTA, SPARSE_DELTA = "model", "patch", "peft", "delta", "sparse-delta"
FORMS = (MODEL, AS_PATCH, PEFT, WHOLE_DELTA, SPARSE_DELTA)


def mask_at(path: Path) -> Path:
    """The file of a mask, or of a patch that is given by its folder; raises MaskError if there is none."""
    file = path / PATCH if path.is_dir() else path
    if not file.is_file():
        raise MaskError(f"{file}: no such mask or patch")
    return file


def free(target: Path) -> Path:
    """The absolute path of a place to write to; raises StorageError if it is taken (an empty folder isn't) or no place."""
    target = target.absolute()
    file = next((folder for folder in target.parents if folder.exists() and not folder.is_dir()), None)
    if file:
        raise StorageError(f"{target}: can't be written, as {file} is not a folder")
    taken = any(target.iterdir()) if target.is_dir() else target.exists() or target.is_symlink()
    if taken:
        raise StorageError(f"{target}: is there already; remove it or choose another name")
    return target
