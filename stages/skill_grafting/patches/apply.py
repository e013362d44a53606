"""apply: the model that a patch makes of its base model, as an ordinary folder; written from the files' tensors, without the model's class."""

import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..errors import MaskError
from ..grafting.apply import put_at
from ..grafting.region import LazyTensors
from ..io import require_free, write_json
from ..models.checkpoints import Checkpoint, Named
from ..models.folders import CONFIG
from ..models.loading import TOKENIZER_FILES, WEIGHTS
from .card import MODEL, write_folder
from .patch import Patch, require_base, require_padding

# what else a folder of transformers may have beside weights, settings and tokenizer
OTHER_FILES = ("generation_config.json", "preprocessor_config.json", "processor_config.json")


def apply(patch: Path, base: str, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the base, a folder or a hub id.
    """
    target, one = require_free(to), Patch.from_pretrained(patch)
    if one.use.model_class is None:
        raise MaskError(f"{patch}: is for no model of transformers; in Python, Patch.apply puts it onto a module")
    checkpoint = Checkpoint.open(base, tokenizer=False)
    require_padding(one.use, checkpoint.config.get("vocab_size"))

    def write(folder: Path) -> str:
        if not _names_fit(one, checkpoint):
            one.apply(base).save_pretrained(folder)
            return ""
        tensors = patched(one, checkpoint)
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


def _names_fit(patch: Patch, checkpoint: Checkpoint) -> bool:
    """True unless the class has other names in memory than in files, as ViT has; such a model is loaded."""
    names = patch.region.shapes
    named = Named.of(checkpoint, names, next(iter(names)).partition(".")[0])
    return 2 * len(named.stored) > len(names)


def patched(patch: Patch, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors of a checkpoint with a patch on them, by the names of the patch's class, in the widest type of both."""
    wanted = patch.region.shapes
    first = next(iter(wanted)).partition(".")[0]
    named = Named.of(checkpoint, wanted, first)
    require_base(patch, LazyTensors(named.stored, named.read), f"the model in {checkpoint.title}")
    parts = {name.rpartition(".")[0] for name in wanted}
    # such as the statistics of a BatchNorm: what lies beside a parameter in the module that it is of
    left = {name: name for name in checkpoint.files.keys() - {*named.stored.values()}}
    beside = {name if name.rpartition(".")[0] in parts else f"{first}.{name}": name for name in left}
    buffers = {name: checkpoint.read(stored) for name, stored in beside.items() if name.rpartition(".")[0] in parts}
    tensors = {name: named.read(name) for name in wanted} | buffers | patch.head
    kinds = [values.dtype for values in (*tensors.values(), *patch.values.values()) if values.is_floating_point()]
    widest = reduce(torch.promote_types, kinds)
    tensors = {name: values.to(widest) if values.is_floating_point() else values for name, values in tensors.items()}
    for name, at in patch.mask.indices.items():
        tensors[name] = tensors[name].clone()
        put_at(tensors[name], at, patch.values[name])
    return {name: values.contiguous() for name, values in tensors.items()}
