"""export and apply: a graft leaves the project in one of several forms, and a patch comes back onto its base."""

import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..grafting.apply import transplant
from ..grafting.mask_file import write_mask
from ..io import replacing, write_json
from ..models.loading import TOKENIZER_FILES, WEIGHTS, load_tokenizer
from .adapter import write_adapter
from .base import Base, make_patch, open_base
from .card import Scores, card_text
from .patch_file import GraftFile, read_graft, read_patch
from .paths import AS_PATCH, CARD, CONFIG, MODEL, PATCH, PEFT, free
from .project import max_length, pipeline_scores, project_task

# what is copied from the base model as it is
BESIDE = ("generation_config.json", *TOKENIZER_FILES)


def export(mask: Path, form: str, base: Path, to: Path, leave_out: bool) -> str:
    """Write the graft of a mask file or patch to a new folder, in one of FORMS; gives one line about it.

    Raises MaskError if the mask is damaged, was made for another model than `base` or doesn't fit the form, and StorageError if
    something is at `to`.
    """
    target, graft = free(to), read_graft(mask)
    pretrained = open_base(base, graft)
    pretrained.require(graft)
    if graft.use is None:
        spec, length = project_task(graft.stored.about.get("task", "")), max_length()
        graft = make_patch(graft, spec, pretrained, length, load_tokenizer(base).pad_token_id)
    scores = pipeline_scores(graft.path, graft.use.task)
    return write_folder(target, graft, form, scores, pretrained, leave_out)


def apply(patch: Path, base: Path, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the one in `base`.
    """
    target, graft = free(to), read_patch(patch)
    pretrained = open_base(base, graft)
    pretrained.require(graft)
    return write_folder(target, graft, MODEL, {}, pretrained)


def write_folder(
    target: Path, patch: GraftFile, form: str, scores: Scores, base: Base | None = None, leave_out: bool = False
) -> str:
    """Write the folder of a patch, or of another form of it on its base model, with its card; gives one line about it."""
    with replacing(target, fresh=True) as folder:
        folder.mkdir()
        held = _write_form(folder, patch, form, base, leave_out)
        (folder / CARD).write_text(card_text(patch, scores, form, held), encoding="utf-8")
    kilobytes = sum(path.stat().st_size for path in target.iterdir()) / 1000
    about = f"{target}: {form} of {patch.use.base} for {patch.use.task}, {kilobytes:,.0f} kB, {patch.size}"
    return f"{about}; {held}" if held else about


def _write_form(folder: Path, patch: GraftFile, form: str, base: Base | None, leave_out: bool) -> str:
    """Write the files of a form; gives a sentence about what an adapter holds."""
    if form == AS_PATCH:
        write_mask(folder / PATCH, patch.stored)
        return ""
    if form == PEFT:
        return write_adapter(folder, patch, base, leave_out)
    head = {name: values.float() for name, values in patch.stored.head.items()}
    region = transplant(base.tensors, patch.stored.values, patch.stored.mask)
    _write_model(folder, *_in_type_of(patch, base, {**base.tensors, **region, **head}), base)
    return ""


def _in_type_of(patch: GraftFile, base: Base, whole: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A whole model in the type of the base's files, or a wider one where a value needs it; and the settings that change."""
    kinds = {values.dtype for values in (*patch.stored.values.values(), *patch.stored.head.values())}
    kind = reduce(torch.promote_types, kinds, base.dtype)
    if kind == torch.float32:
        return whole, patch.use.config
    tensors = {name: values.to(kind) if values.dtype == torch.float32 else values for name, values in whole.items()}
    return tensors, {**patch.use.config, "dtype": str(kind).removeprefix("torch.")}


def _write_model(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], base: Base) -> None:
    """An ordinary Hugging Face folder: config, tokenizer and these weights."""
    for file in sorted(base.folder.iterdir()):
        if file.is_file() and file.name in BESIDE:
            shutil.copyfile(file, folder / file.name)
    write_json(folder / CONFIG, {**base.config, **config})
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
