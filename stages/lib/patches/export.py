"""export and apply: a graft leaves the project in one of several forms, and a patch comes back onto its base."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ..errors import ModelError
from ..grafting.apply import transplant
from ..grafting.mask_file import StoredMask, read_mask, write_mask
from ..io import read_json, replacing, write_json
from ..models.loading import TOKENIZER_FILES, WEIGHTS
from .base import Base, open_base
from .build_patch import base_of, chosen_task, make_patch, require_whole_base, taken_out
from .delta import DELTA, deltas_of, make_adapter, whole_delta, write_adapter, write_sparse_delta
from .format import card_text, size_text
from .locations import AS_PATCH, CARD, CONFIG, MODEL, PATCH, PEFT, SPARSE_DELTA, free, mask_at
from .patch_file import KEY, PatchMetadata, read_graft, use_of
from .project import max_length, pipeline_scores, task_of

Writer = Callable[[Path], None]
# of the models that a card compares
# what is copied from the base model as it is
BESIDE = ("generation_config.json", *TOKENIZER_FILES)


def export(mask: Path, form: str, task: str | None, base: Path, to: Path, leave_out: bool) -> str:
    """Write the graft of a mask file or patch to a new folder, in one of FORMS; gives one line about it.

    Raises MaskError if the mask is damaged, serves several tasks and none is chosen, was made for another model than `base`,
    or doesn't fit the form, and StorageError if something is at `to`.
    """
    target, file = free(to), mask_at(mask)
    with _opened(file, task, base) as (patch, use, pretrained):
        write, said = _formed(form, file, patch, use, pretrained, leave_out)
        kilobytes = _write(target, write, card_text(patch, use, pipeline_scores(file, use.task), form, said))
    if form == AS_PATCH:
        return f"{target}: patch of {use.base} for {use.task}, {kilobytes:.0f} kB, {size_text(patch)}"
    if form == MODEL:
        return f"{target}: {use.base} with the graft for {use.task}, {size_text(patch)}"
    return f"{target}: {form} of {use.base} for {use.task}, {kilobytes:.0f} kB; {said}"


def write_patch(target: Path, patch: StoredMask, card: str) -> None:
    """Write the folder of a patch."""
    _write(target, lambda folder: write_mask(folder / PATCH, patch), card)


def _formed(
    form: str, file: Path, patch: StoredMask, use: PatchMetadata, base: Base, leave_out: bool
) -> tuple[Writer, str]:
    """The files that go into a folder beside the card, and a sentence about them."""
    if form == AS_PATCH:
        return lambda folder: write_mask(folder / PATCH, patch), ""
    if form == PEFT:
        tensors, config, said = make_adapter(file, patch, use, base, leave_out)
        return partial(write_adapter, tensors, config), said
    if form == MODEL:
        return partial(_write_model, _grafted(patch, base), use, base), ""
    deltas = deltas_of(patch, base)
    if form == SPARSE_DELTA:
        return lambda folder: write_sparse_delta(deltas, patch, use, folder / DELTA), str(deltas)
    return partial(_write_model, whole_delta(deltas, patch, base), use, base), str(deltas)


@contextmanager
def _opened(file: Path, task: str | None, base: Path) -> Iterator[tuple[StoredMask, PatchMetadata, Base]]:
    """A mask as a patch, or a patch as it is, with its base model: of a patch any folder of it, and no project is needed."""
    stored = read_graft(file)
    chosen = chosen_task(file, stored, task)
    stored = taken_out(stored, chosen)
    with base_of(file, stored, base) as pretrained:
        if KEY in stored.about:
            use = use_of(file, stored)
            require_whole_base(file, stored, use, pretrained, base)
            yield stored, use, pretrained
            return
        length = max_length()
        yield *make_patch(file, stored, task_of(chosen), pretrained, length), pretrained


def apply(patch: Path, base: Path, to: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the one in `base`.
    """
    target, file = free(to), mask_at(patch)
    stored = read_mask(file)
    use = use_of(file, stored)
    with open_base(base, use.mode) as pretrained:
        require_whole_base(file, stored, use, pretrained, base)
        write = partial(_write_model, _grafted(stored, pretrained), use, pretrained)
        _write(target, write, card_text(stored, use, {}, MODEL))
    return f"{target}: {use.base} with the graft for {use.task}, {size_text(stored)}"


def _grafted(stored: StoredMask, base: Base) -> dict[str, Tensor]:
    """Every tensor of the base model with the graft; values are copied bit for bit."""
    head = {name: values.float() for name, values in stored.head.items()}
    return {**base.tensors, **transplant(base.tensors, stored.values, stored.mask), **head}


def _write_model(tensors: dict[str, Tensor], use: PatchMetadata, base: Base, folder: Path) -> None:
    """An ordinary Hugging Face folder: config, tokenizer and these weights."""
    for file in sorted(base.folder.iterdir()):
        if file.is_file() and file.name in BESIDE:
            shutil.copyfile(file, folder / file.name)
    write_json(folder / CONFIG, {**read_json(base.folder / CONFIG, ModelError), **use.config})
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _write(target: Path, write: Writer, card: str) -> float:
    """Write a folder; gives its size in kB."""
    with replacing(target, fresh=True) as partial:
        partial.mkdir()
        write(partial)
        (partial / CARD).write_text(card, encoding="utf-8")
    return sum(path.stat().st_size for path in target.iterdir()) / 1000
