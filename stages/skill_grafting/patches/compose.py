"""compose: several masks on one base model become one, as one more mask file."""

from dataclasses import replace
from pathlib import Path

from ..errors import MaskError
from ..grafting.mask_file import write_mask
from ..merging.stitch import stitch
from .base import Base, open_base
from .patch_file import KEY, GraftFile, read_graft
from .paths import free

# fields of PatchMetadata that define how a task is read off the model
READ_BY = ("labels", "config", "prompt", "max_length")


def compose(masks: list[Path], rule: str, base: Path, to: Path) -> str:
    """Write the mask that joins these masks and patches to a new file; gives one line about it.

    Each task's trained head is kept as `<task>:<name>`, and `export --task` takes one of them out; of patches each one's use
    is kept as well, so that this needs no project.  Raises MaskError if one is damaged, was composed itself or belongs to
    another model than `base`, or if a task comes with two heads, or is read in two ways; StorageError if something is at `to`.
    """
    target = free(to, for_file=True)
    if len(masks) < 2:
        raise MaskError(f"{masks[0]}: is only one mask; name two or more to compose")
    if twice := [
        path for place, path in enumerate(masks) if path.resolve() in {one.resolve() for one in masks[:place]}
    ]:
        raise MaskError(f"{twice[0]}: is named twice; its values would count twice")
    grafts = [read_graft(path) for path in masks]
    _require_one_use(grafts)
    pretrained = open_base(base, grafts[0])
    parts = [_part(graft, pretrained) for graft in grafts]
    composed = stitch([part.stored for part in parts], pretrained.tensors, rule)
    for entry, part in zip(composed.about["grafts"], parts, strict=True):
        entry |= {KEY: part.stored.about[KEY]} if part.use else {}
    write_mask(free(target, for_file=True), composed)
    whole = GraftFile(target, composed)
    shared = sum(part.stored.mask.selected for part in parts) - composed.mask.selected
    return f"{target}: {' + '.join(whole.tasks)} by {rule}, {whole.size}; {shared:,} fewer than the parts together"


def _require_one_use(grafts: list[GraftFile]) -> None:
    """Raise MaskError if two patches of one task are read in different ways: only one can be kept for it."""
    known: dict[str, GraftFile] = {}
    for graft in (graft for graft in grafts if graft.use):
        first = known.setdefault(graft.use.task, graft)
        if differing := [name for name in READ_BY if getattr(graft.use, name) != getattr(first.use, name)]:
            other = f"as {first.path} is, but with another {', '.join(differing)}"
            raise MaskError(f"{graft.path}: is of the task {graft.use.task}, {other}; compose one of them")


def _part(graft: GraftFile, base: Base) -> GraftFile:
    if len(graft.tasks) > 1:
        raise MaskError(f"{graft.path}: is composed itself, of {', '.join(graft.tasks)}; compose its parts at once")
    if not graft.tasks[0]:
        raise MaskError(f"{graft.path}: names no task, by which its part would be found again")
    base.require(graft)
    # not every stage notes the mode, but what fits the base model has its mode
    about = {**graft.stored.about, "mode": base.spec.mode, "file": str(graft.path)}
    return replace(graft, stored=replace(graft.stored, about=about))
