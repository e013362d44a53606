"""export and apply: a graft leaves the project as a patch or a whole model, and a patch comes back onto its base."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .. import paths
from ..data.task_cards import read_task
from ..errors import MaskError, ModelError
from ..graft.apply import transplant
from ..graft.mask_file import StoredMask, write_mask
from ..io import read_json, replacing, write_json
from ..metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from ..models.loading import TOKENIZER_FILES, WEIGHTS
from .base import Base, open_base, read_base
from .build_patch import Use, chosen_task, make_patch, read_graft, read_patch, require_whole_base
from .format import card_text, size_text
from .locations import CARD, CONFIG, MODEL, PATCH, free, mask_at

# of the models that a card compares
COMPARED = (PRETRAINED, FINETUNED, GRAFTED)
# what is copied from the base model as it is
BESIDE = ("generation_config.json", *TOKENIZER_FILES)


def export(mask: Path, form: str, task: str | None, base: Path, max_length: int, target: Path) -> str:
    """Write the graft of a mask file to a new folder, as a whole model or as a patch; gives one line about it.

    Raises MaskError if the mask is damaged, serves several tasks and none is chosen, or was made for
    another model than `base`, and StorageError if something is at `target`.
    """
    target, file = free(target), mask_at(mask)
    stored = read_graft(file)
    spec = read_task(chosen_task(file, stored, task))
    pretrained = read_base(base)
    patch, use = make_patch(file, stored, spec, pretrained, max_length)
    card = card_text(patch, use, pipeline_scores(file, spec.name), whole=form == MODEL)
    if form == MODEL:
        _require_types(file, patch, pretrained)
        _write_grafted(patch, use, pretrained, card, target)
        return f"{target}: {use.base} with the graft for {use.task}, {size_text(patch)}"
    kilobytes = write_patch(target, patch, card)
    return f"{target}: patch of {use.base} for {use.task}, {kilobytes:.0f} kB, {size_text(patch)}"


def write_patch(target: Path, patch: StoredMask, card: str) -> float:
    """Write the folder of a patch; gives its size in kB."""
    with replacing(target) as partial:
        partial.mkdir()
        write_mask(partial / PATCH, patch)
        _write_card(card, partial, PATCH)
    return sum(path.stat().st_size for path in target.iterdir()) / 1000


def apply(patch: Path, base: Path, target: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the one in `base`.
    """
    target, file = free(target), mask_at(patch)
    stored, use = read_patch(file)
    with open_base(base, use.mode) as pretrained:
        require_whole_base(file, stored, use, pretrained, base)
        _require_types(file, stored, pretrained)
        _write_grafted(stored, use, pretrained, card_text(stored, use, {}, whole=True), target)
    return f"{target}: {use.base} with the graft for {use.task}, {size_text(stored)}"


def pipeline_scores(mask: Path, task: str) -> dict[str, dict[str, Any]]:
    """variant -> n, score, retained, agreement and so on, on the task's own test set; nothing if none are stored.

    A stage keeps its masks at masks/<stage>/<axes>/<seed>/<task> and their scores at metrics/<same>.
    """
    masks = paths.LEARNED.parent.absolute()
    inside = mask.absolute().relative_to(masks).parts if mask.absolute().is_relative_to(masks) else ()
    if len(inside) < 3 or not inside[-2].isdecimal() or mask.stem != task:
        return {}
    stage, *axes, seed, _ = inside
    if stage == paths.LEARNED.name:
        return _main_scores(task, int(seed))
    record = paths.reading_record(stage, tuple(axes), task, int(seed))
    rows = read_json(record).get("rows", []) if record.is_file() else []
    return {row["variant"]: row for row in rows if row["test_set"] == task and row["variant"] in COMPARED}


def _main_scores(task: str, seed: int) -> dict[str, dict[str, Any]]:
    """Scores of the learned mask, which two stages of the main pipeline measure."""
    files = [paths.scores(stage, task, seed) for stage in ("evaluate", "calibration")]
    stored = [read_json(file)["scores"].get(task, {}) for file in files if file.is_file()]
    joined = {name: {key: value for part in stored for key, value in part.get(name, {}).items()} for name in COMPARED}
    return {variant: values for variant, values in joined.items() if "score" in values}


def _require_types(file: Path, stored: StoredMask, base: Base) -> None:
    for name, values in stored.values.items():
        there = base.tensors[name].dtype
        if torch.promote_types(values.dtype, there) != there:  # others are held exactly by the base model's own
            raise MaskError(f"{file}: damaged: {name} is {values.dtype}, not {there}")


def _write_grafted(stored: StoredMask, use: Use, base: Base, card: str, target: Path) -> None:
    """An ordinary Hugging Face folder: config, tokenizer, weights and card; values are copied bit for bit."""
    head = {name: values.float() for name, values in stored.head.items()}
    tensors = {**base.tensors, **transplant(base.tensors, stored.values, stored.mask), **head}
    config = {**read_json(base.folder / CONFIG, ModelError), **use.config}
    with replacing(target) as partial:
        partial.mkdir()
        for file in sorted(base.folder.iterdir()):
            if file.is_file() and file.name in BESIDE:
                shutil.copyfile(file, partial / file.name)
        write_json(partial / CONFIG, config)
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        _write_card(card, partial, WEIGHTS)


def _write_card(card: str, folder: Path, weights: str) -> None:
    """README.md; whoever may read it may read the weights too, which safetensors keeps to their owner."""
    (folder / CARD).write_text(card, encoding="utf-8")
    shutil.copymode(folder / CARD, folder / weights)
