"""A description of one mask: whose it is, how large, where it lies, what moved most; and of two, how far they overlap."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..grafting.apply import values_at
from ..grafting.mask import GraftMask
from ..grafting.mask_file import StoredMask
from ..grafting.region import Tensors
from ..metrics.composition import KINDS, composition, layer_of
from ..metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap, chance_iou, intersection, iou
from ..models.anatomy import FILE
from .base import read_base, require_base
from .build_patch import base_of, tasks_of
from .format import shown
from .locations import PRETRAINED, mask_at
from .patch_file import KEY, read_graft

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
    return {**facts_of(file, stored), "largest": _largest(file, stored, base)}


def facts_of(file: Path, stored: StoredMask) -> dict[str, Any]:
    """Those of `inspect_mask` that the mask itself tells."""
    counts = stored.mask.counts
    rows = composition(counts, stored.mask.region.shapes)
    return {
        **identity(file, stored),
        "tensors": {"selected_in": len(counts), "graftable": len(stored.mask.region.shapes)},
        "head": {name: list(values.shape) for name, values in stored.head.items()},
        "layers": added(rows, "layer"),
        "kinds": added(sorted(rows, key=lambda row: KINDS.index(row["kind"])), "kind"),
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
    if folder is None and not (PRETRAINED / FILE).is_file():
        return None
    # the pipeline's own may be any model, and none is imported anew for that
    with base_of(file, stored, folder) if folder else nullcontext(read_base(PRETRAINED)) as base:
        if folder is None and base.fingerprint(stored.mask.region) != stored.about.get("fingerprint"):
            return None
        require_base(file, stored, base)
        before = values_at(base.tensors, stored.mask)
        return largest_movements(stored.mask, before, stored.values)


def largest_movements(mask: GraftMask, before: Tensors, after: Tensors) -> list[dict[str, Any]]:
    """name, place, before and after of the selected parameters that moved furthest, furthest first, ties in order."""
    region = mask.region
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


def diff(first: Path, second: Path, as_json: bool) -> str:
    """`compare` in words or as JSON."""
    return shown("diff.txt.j2", compare(first, second), as_json)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Facts about two masks or patches, ready for JSON; raises MaskError if one is damaged.

    same_model: equal base models, as far as their regions go.  It, overlap, layers and values are null
    unless both have the same region.  of_first is |A ∩ B| / |A|, of_second |A ∩ B| / |B|; layers are numbered
    as in the parameters' names.
    """
    files = [mask_at(path) for path in (first, second)]
    stored = [read_graft(file) for file in files]
    a, b = (one.mask.region for one in stored)
    facts: dict[str, Any] = {
        "first": identity(files[0], stored[0]),
        "second": identity(files[1], stored[1]),
        **dict.fromkeys(("same_model", "overlap", "layers", "values")),
    }
    if [*a.shapes.items()] != [*b.shapes.items()]:
        return facts
    facts["same_model"] = stored[0].about.get("fingerprint") == stored[1].about.get("fingerprint")
    sets = [one.mask.region_indices().numpy() for one in stored]
    return facts | {"overlap": _overlap(*sets, a.size), "layers": _layers(stored, sets), "values": _values(stored)}


def _overlap(first: np.ndarray, second: np.ndarray, size: int) -> dict[str, Any]:
    a, b = len(first), len(second)
    return {
        "first": a,
        "second": b,
        "both": intersection(first, second),
        "iou": iou(first, second),
        "chance_iou": chance_iou(a, b, size),
        "of_first": asymmetric_overlap(second, first),
        "chance_of_first": chance_asymmetric_overlap(b, a, size),
        "of_second": asymmetric_overlap(first, second),
        "chance_of_second": chance_asymmetric_overlap(a, b, size),
    }


def _layers(stored: list[StoredMask], sets: list[np.ndarray]) -> list[dict[str, Any]]:
    """`_overlap` within each layer, chance too, in the model's order."""
    region = stored[0].mask.region
    layers = [layer_of(name) for name in region.shapes]
    owners = [np.searchsorted([*region.starts.values()], indices, side="right") - 1 for indices in sets]
    rows = []
    for layer in dict.fromkeys(layers):
        inside = [number for number, other in enumerate(layers) if other == layer]
        parts = [indices[np.isin(owner, inside)] for indices, owner in zip(sets, owners, strict=True)]
        rows.append({"layer": layer, **_overlap(*parts, sum(region.sizes[number] for number in inside))})
    return rows


def _values(stored: list[StoredMask]) -> dict[str, Any]:
    """Of the shared parameters: how many have other values, and the largest and the median difference."""
    gaps = [torch.empty(0)]
    first, second = stored
    for name in (name for name in first.mask.indices if name in second.mask.indices):
        pair = first.mask.indices[name], second.mask.indices[name]
        _, at, bt = np.intersect1d(*pair, assume_unique=True, return_indices=True)
        gaps.append((first.values[name][at].double() - second.values[name][bt].double()).abs())
    gap = torch.cat(gaps)
    median, largest = (float(gap.median()), float(gap.max())) if len(gap) else (None, None)
    counts = {"shared": len(gap), "differ": int((gap > 0).sum())}
    return {**counts, "median_difference": median, "largest_difference": largest}
