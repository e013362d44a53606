"""apply: the model that a patch makes of its base model, as an ordinary folder."""

import shutil
from functools import reduce
from pathlib import Path

import torch
from safetensors import safe_open

from ..io import require_free
from ..models.folders import find_checkpoint, weight_files
from ..models.loading import TOKENIZER_FILES
from .card import MODEL, write_folder
from .live import load_base, put_on
from .patch_file import GraftFile, read_patch

# the types of files that are narrower than float32
NARROW = {"BF16": torch.bfloat16, "F16": torch.float16}


def apply(patch: Path, base: str, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the base, a folder or a hub id.
    """
    target, graft = require_free(to), read_patch(patch)
    folder, _ = find_checkpoint(base, tokenizer=False)
    model = put_on(load_base(folder, graft, _type_of(folder, graft)))

    def write(place: Path) -> str:
        model.save_pretrained(place)
        for file in (folder / name for name in TOKENIZER_FILES if (folder / name).is_file()):
            shutil.copyfile(file, place / file.name)
        return ""

    return write_folder(target, graft, MODEL, {}, write)


def _type_of(folder: Path, patch: GraftFile) -> torch.dtype:
    """The type of a folder's weights, or a wider one where a value of the patch needs it."""
    kinds = {part.dtype for part in (*patch.stored.values.values(), *patch.stored.head.values())}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as stored:
            names = {stored.get_slice(name).get_dtype() for name in stored.keys()}  # noqa: SIM118 - not a dict
            kinds |= {NARROW.get(name, torch.float32) for name in names if name[0] in "BF"}
    return reduce(torch.promote_types, kinds)
