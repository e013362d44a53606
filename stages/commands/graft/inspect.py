"""What there is to say about one mask: whose it is, how large, where it lies, what moved most."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.commands.graft.build_patch import KEY, tasks_of
from stages.commands.graft.locations import mask_at
from stages.lib import paths
from stages.lib.graft.apply import values_at
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, read_mask, require_model
from stages.lib.graft.region import Region
from stages.lib.metrics.composition import KINDS, composition
from stages.lib.models.anatomy import FILE, read_anatomy
from stages.lib.models.loading import read_tensors

LARGEST = 5


def inspect_mask(path: Path, base: Path | None) -> dict[str, Any]:
    """Facts about a mask or patch, ready for JSON: `identity` and more.

    layers, kinds: selected, parameters, share, chance (share of the graftable parameters), in the
    order of the model or of KINDS; a layer is numbered as in the parameters' names, null outside the layers.
    largest: name, place, before, after of the parameters that moved most, null if the base model isn't
    known.  Raises MaskError if the file is damaged or not for the model in `base`, if one is given.
    """
    file = mask_at(path)
    stored = read_mask(file)
    counts = {name: len(indices) for name, indices in stored.mask.indices.items()}
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
    """What a mask is of: file, form, model, fingerprint, tasks, seed, localizer, and its size with both denominators."""
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
        found = sums.setdefault(row[by], {by: row[by], "selected": 0, "parameters": 0, "share": 0.0, "chance": 0.0})
        for measure in ("selected", "parameters", "share", "chance"):
            found[measure] += row[measure]
    return [*sums.values()]


def _largest(file: Path, stored: StoredMask, base: Path | None) -> list[dict[str, Any]] | None:
    folder = base or paths.PRETRAINED
    if base is None and not (folder / FILE).is_file():
        return None
    known, region = read_anatomy(folder), stored.mask.region
    fits = all(known.shapes.get(name) == [*shape] for name, shape in region.shapes.items())
    pretrained = read_tensors(folder, region.shapes) if fits else {}
    fingerprint = region.fingerprint(pretrained) if fits else "other shapes"
    if base is None and fingerprint != stored.about.get("fingerprint"):
        return None
    require_model(file, stored.about, region, fingerprint, known.name)
    return largest_movements(region, stored.mask, values_at(pretrained, stored.mask), stored.values)


def largest_movements(
    region: Region, mask: GraftMask, before: dict[str, Tensor], after: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """name, place, before and after of the selected parameters that moved furthest, furthest first, ties in order."""
    names = [name for name in region.shapes if name in mask.indices]
    if not names:
        return []
    old, new = (torch.cat([values[name] for name in names]) for values in (before, after))
    indices = torch.cat([mask.indices[name] for name in names])
    owners = torch.repeat_interleave(torch.arange(len(names)), torch.tensor([len(mask.indices[n]) for n in names]))
    found = torch.sort((new - old).abs(), descending=True, stable=True).indices[:LARGEST].tolist()
    return [_movement(region, names[owners[at]], int(indices[at]), float(old[at]), float(new[at])) for at in found]


def _movement(region: Region, name: str, index: int, before: float, after: float) -> dict[str, Any]:
    # torch.unravel_index would load a second's worth of libraries
    place = [int(part) for part in np.unravel_index(index, region.shapes[name])]
    return {"name": name, "place": place, "before": before, "after": after}
