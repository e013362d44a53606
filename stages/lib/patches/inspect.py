"""A description of one mask: whose it is, how large, where it lies, what moved most."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import paths
from ..graft.apply import values_at
from ..graft.mask import GraftMask
from ..graft.mask_file import StoredMask
from ..graft.region import Region, Tensors
from ..metrics.composition import KINDS, composition
from ..models.anatomy import FILE
from .base import read_base, require_base
from .build_patch import KEY, base_of, read_graft, tasks_of
from .format import shown
from .locations import mask_at

LARGEST = 5
MEASURES = ("selected", "parameters", "share", "chance")


def inspect(mask: Path, base: Path | None, picture: Path | None, as_json: bool) -> str:
    """`inspect_mask` in words or as JSON, and as a picture if there is to be one."""
    facts = inspect_mask(mask, base)
    if picture:
        from .picture import draw

        draw(facts, picture)
    return shown("inspect.txt.j2", facts, as_json)


def inspect_mask(path: Path, base: Path | None) -> dict[str, Any]:
    """Facts about a mask or patch, ready for JSON: `identity` and more.

    layers, kinds: selected, parameters, share, chance (share of the graftable parameters), in the
    order of the model or of KINDS; a layer is numbered as in the parameters' names, null outside the layers.
    largest: name, place, before, after of the parameters that moved most, null if the base model isn't
    known.  Raises MaskError if the file is damaged or not for the model in `base`, if one is given.
    """
    file = mask_at(path)
    stored = read_graft(file)
    counts = stored.mask.counts
    rows = composition(counts, stored.mask.region.shapes)
    return {
        **identity(file, stored),
        "tensors": {"selected_in": len(counts), "graftable": len(stored.mask.region.shapes)},
        "head": {name: list(values.shape) for name, values in stored.head.items()},
        "layers": added(rows, "layer"),
        "kinds": added(sorted(rows, key=lambda row: KINDS.index(row["kind"])), "kind"),
        "largest": _largest(file, stored, base),
    }


def identity(file: Path, stored: StoredMask) -> dict[str, Any]:
    """The origin of a mask: file, form, model, fingerprint, tasks, seed, localizer, and its size with both denominators."""
    mask, about = stored.mask, stored.about
    whole = about.get("model_parameters")
    return {
        "file": str(file),
        "form": "patch" if KEY in about else "mask",
        "model": about.get("model"),
        "fingerprint": about.get("fingerprint"),
        "tasks": tasks_of(stored),
        "seed": about.get("seed"),
        "localizer": about.get("localizer"),
        "selected": mask.selected,
        "graftable": mask.region.size,
        "sparsity": mask.sparsity,
        "model_parameters": whole,
        "share_of_model": mask.selected / whole if whole else None,
    }


def added(rows: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows of `composition` summed over everything but `by`, in the order of its first appearance."""
    sums: dict[Any, dict[str, Any]] = {}
    for row in rows:
        found = sums.setdefault(row[by], {by: row[by], **dict.fromkeys(MEASURES, 0)})
        for measure in MEASURES:
            found[measure] += row[measure]
    return [*sums.values()]


def _largest(file: Path, stored: StoredMask, folder: Path | None) -> list[dict[str, Any]] | None:
    if folder is None and not (paths.PRETRAINED / FILE).is_file():
        return None
    # the pipeline's own may be any model, and none is imported anew for that
    with base_of(file, stored, folder) if folder else nullcontext(read_base(paths.PRETRAINED)) as base:
        if folder is None and base.fingerprint(stored.mask.region) != stored.about.get("fingerprint"):
            return None
        require_base(file, stored, base)
        before = values_at(base.tensors, stored.mask)
        return largest_movements(stored.mask.region, stored.mask, before, stored.values)


def largest_movements(region: Region, mask: GraftMask, before: Tensors, after: Tensors) -> list[dict[str, Any]]:
    """name, place, before and after of the selected parameters that moved furthest, furthest first, ties in order."""
    names = [name for name in region.shapes if name in mask.indices]
    if not names:
        return []
    old, new = (torch.cat([values[name] for name in names]) for values in (before, after))
    rows = []
    for number in torch.sort((new - old).abs(), descending=True, stable=True).indices[:LARGEST]:
        [(name, index)] = region.split(mask.region_indices()[number].reshape(1)).items()
        # torch.unravel_index would load a second's worth of libraries
        place = [int(part) for part in np.unravel_index(int(index), region.shapes[name])]
        rows.append({"name": name, "place": place, "before": float(old[number]), "after": float(new[number])})
    return rows
