"""apply: the model that a patch makes of its base model, as an ordinary folder; written from the files' tensors, without the model's class."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..checkpoints.files import Checkpoint
from ..checkpoints.folders import CONFIG
from ..models.loading import TOKENIZER_FILES, WEIGHTS
from ..support.errors import MaskError
from ..support.io import write_json
from .card import MODEL, require_free, write_folder
from .patch_file import read_patch
from .placing import load_base, patched_tensors, put_on, require_padding

# what else a folder of transformers may have beside weights, settings and tokenizer
OTHER_FILES = ("generation_config.json", "preprocessor_config.json", "processor_config.json")


def apply(patch: Path, base: str, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the base, a folder or a hub id.
    """
    target, one = require_free(to), read_patch(patch)
    if one.use.model_class is None:
        raise MaskError(f"{patch}: is for no model of transformers; in Python, Patch.apply puts it onto a module")
    checkpoint = Checkpoint.open(base, tokenizer=False)
    require_padding(one.use, checkpoint.config.get("vocab_size"))

    def write(folder: Path) -> str:
        tensors = patched_tensors(one, checkpoint)
        if tensors is None:  # such a model is loaded
            put_on(one, load_base(one, base), f"the model in {base}").save_pretrained(folder)
            return ""
        kind = next((values.dtype for values in tensors.values() if values.is_floating_point()), torch.float32)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        settings: dict[str, Any] = {**checkpoint.config, **one.use.config, "architectures": [one.use.model_class]}
        if isinstance(inner := settings.get("text_config"), dict) and "pad_token_id" in one.use.config:
            settings["text_config"] = inner | {"pad_token_id": one.use.config["pad_token_id"]}
        write_json(folder / CONFIG, settings | {"dtype": str(kind).removeprefix("torch.")})
        for file in (checkpoint.folder / name for name in (*TOKENIZER_FILES, *OTHER_FILES)):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        return ""

    return write_folder(target, one, MODEL, write)
