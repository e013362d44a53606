"""A grafted model as an ordinary Hugging Face folder, which needs nothing of this project."""

import shutil
from pathlib import Path

from safetensors.torch import save_file

from stages.commands.graft.base import Base
from stages.commands.graft.locations import CARD
from stages.commands.graft.patch import Use
from stages.lib.errors import MaskError, ModelError
from stages.lib.graft.apply import transplant
from stages.lib.graft.mask_file import StoredMask
from stages.lib.io import read_json, replacing, write_json
from stages.lib.models.anatomy import FILE
from stages.lib.models.loading import WEIGHTS

CONFIG = "config.json"


def write_grafted(patch: Path, stored: StoredMask, use: Use, base: Base, card: str, target: Path) -> None:
    """Write config, tokenizer, weights and card; `base` must be the patch's own.

    Values are copied bit for bit.  Raises MaskError if they are of another type than the base model's.
    """
    for name, values in stored.values.items():
        if values.dtype != base.tensors[name].dtype:
            raise MaskError(f"{patch}: damaged: {name} is {values.dtype}, not {base.tensors[name].dtype}")
    tensors = {**base.tensors, **transplant(base.tensors, stored.values, stored.mask), **stored.head}
    config = {**read_json(base.folder / CONFIG, ModelError), **use.config}
    with replacing(target) as partial:
        partial.mkdir()
        for file in sorted(base.folder.iterdir()):
            if file.is_file() and file.name not in (CONFIG, WEIGHTS, FILE, CARD):
                shutil.copyfile(file, partial / file.name)
        write_json(partial / CONFIG, config)
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        write_card(card, partial, WEIGHTS)


def write_card(card: str, folder: Path, weights: str) -> None:
    """Write README.md, and let whoever may read it read the weights too, which safetensors keeps to their owner."""
    (folder / CARD).write_text(card, encoding="utf-8")
    shutil.copymode(folder / CARD, folder / weights)
