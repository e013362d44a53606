"""compose: several masks on one base model become one, as one more mask file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import MaskError
from ..grafting.mask_file import StoredMask, write_mask
from ..merging.stitch import stitch
from .base import Base, require_base
from .build_patch import base_of, tasks_of
from .format import size_text
from .locations import free, mask_at
from .patch_file import KEY, read_graft

# what of a patch's use says how a task is read off the model
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
    found = [(file, read_graft(file)) for file in map(mask_at, masks)]
    with base_of(*found[0], base) as pretrained:
        parts = [_part(file, stored, pretrained) for file, stored in found]
        _require_one_use(found)
        composed = stitch(parts, pretrained.tensors, rule)
    for entry, part in zip(composed.about["grafts"], parts, strict=True):
        entry |= {KEY: part.about[KEY]} if KEY in part.about else {}
    write_mask(free(target, for_file=True), composed)
    shared = sum(part.mask.selected for part in parts) - composed.mask.selected
    return f"{target}: {' + '.join(tasks_of(composed))} by {rule}, {size_text(composed)}; {shared:,} fewer than the parts together"


def _require_one_use(found: list[tuple[Path, StoredMask]]) -> None:
    """Raise MaskError if two patches of one task are read in different ways: only one can be kept for it."""
    known: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file, stored in found:
        if not (use := stored.about.get(KEY)):
            continue
        first, other = known.setdefault(use["task"], (file, use))
        if differing := [name for name in READ_BY if use[name] != other[name]]:
            raise MaskError(
                f"{file}: is of the task {use['task']}, as {first} is, but with another {', '.join(differing)}; "
                "compose one of them"
            )


def _part(file: Path, stored: StoredMask, base: Base) -> StoredMask:
    if len(tasks_of(stored)) > 1:
        raise MaskError(f"{file}: is composed itself, of {', '.join(tasks_of(stored))}; compose its parts at once")
    require_base(file, stored, base)
    # not every stage notes the mode, but what fits the base model has its mode
    return replace(stored, about={**stored.about, "mode": base.anatomy.mode, "file": str(file)})
