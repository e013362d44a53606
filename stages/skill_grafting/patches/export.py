"""export: a patch as an adapter that peft loads."""

from pathlib import Path

from .adapter import write_adapter
from .card import PEFT, require_free, write_folder
from .patch_file import read_patch
from .placing import load_base, require_fitting


def export(patch: Path, base: str, to: Path, leave_out: bool) -> str:
    """Write a patch as an adapter of peft to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged, was made for another model than `base` or doesn't fit an adapter, and StorageError if
    something is at `to`.
    """
    target, one = require_free(to), read_patch(patch)
    model = load_base(one, base)
    require_fitting(one, model, f"the model in {base}")
    return write_folder(target, one, PEFT, lambda folder: write_adapter(folder, one, model, leave_out))
