"""export and apply: a graft leaves the project as a patch or a whole model, and a patch comes back onto its base."""

from pathlib import Path

from stages.commands.graft.base import open_base, read_base, require_whole_base
from stages.commands.graft.build_patch import chosen_task, make_patch
from stages.commands.graft.card import model_card, patch_card, size_in_words
from stages.commands.graft.folder import write_card, write_grafted
from stages.commands.graft.locations import MODEL, PATCH, free, mask_at
from stages.commands.graft.patch import read_patch
from stages.commands.graft.scores import pipeline_scores
from stages.lib.data.task_cards import read_task
from stages.lib.graft.mask_file import read_mask, write_mask
from stages.lib.io import replacing


def export(mask: Path, form: str, task: str | None, base: Path, max_length: int, target: Path) -> str:
    """Write the graft of a mask file to a new folder, as a whole model or as a patch; gives one line about it.

    Raises MaskError if the mask is damaged, serves several tasks and none is chosen, or was made for
    another model than `base`, and StorageError if something is at `target`.
    """
    target, file = free(target), mask_at(mask)
    stored = read_mask(file)
    spec = read_task(chosen_task(file, stored, task))
    pretrained = read_base(base)
    patch, use = make_patch(file, stored, spec, pretrained, max_length)
    scores = pipeline_scores(file, spec.name)
    if form == MODEL:
        write_grafted(file, patch, use, pretrained, model_card(patch, use, scores), target)
        return f"{target}: {use.base} with the graft for {use.task}, {size_in_words(patch)}"
    with replacing(target) as partial:
        partial.mkdir()
        write_mask(partial / PATCH, patch)
        write_card(patch_card(patch, use, scores), partial, PATCH)
    kilobytes = sum(path.stat().st_size for path in target.iterdir()) / 1000
    return f"{target}: patch of {use.base} for {use.task}, {kilobytes:.0f} kB, {size_in_words(patch)}"


def apply(patch: Path, base: Path, target: Path) -> str:
    """Write the model that a patch makes of its base model to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged or was made for another model than the one in `base`.
    """
    target, file = free(target), mask_at(patch)
    stored, use = read_patch(file)
    with open_base(base, use) as pretrained:
        require_whole_base(file, stored, use, pretrained, base)
        write_grafted(file, stored, use, pretrained, model_card(stored, use, {}), target)
    return f"{target}: {use.base} with the graft for {use.task}, {size_in_words(stored)}"
