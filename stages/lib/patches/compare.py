"""The overlap of two masks, beside that of two random ones of their sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..graft.mask_file import StoredMask
from ..metrics.composition import layer_of
from ..metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap, chance_iou, iou
from .build_patch import read_graft
from .format import shown
from .inspect import identity
from .locations import mask_at


def diff(first: Path, second: Path, as_json: bool) -> str:
    """`compare` in words or as JSON."""
    return shown("diff.txt.j2", compare(first, second), as_json)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Facts about two masks or patches, ready for JSON; raises MaskError if one is damaged.

    same_model: equal base models, as far as their regions go.  overlap, layers, values: null unless
    both have the same region.  of_first is |A ∩ B| / |A|, of_second |A ∩ B| / |B|; layers are numbered
    as in the parameters' names.
    """
    files = [mask_at(path) for path in (first, second)]
    stored = [read_graft(file) for file in files]
    a, b = (one.mask.region for one in stored)
    facts: dict[str, Any] = {
        "first": identity(files[0], stored[0]),
        "second": identity(files[1], stored[1]),
        "same_model": a == b and stored[0].about.get("fingerprint") == stored[1].about.get("fingerprint"),
        **dict.fromkeys(("overlap", "layers", "values")),
    }
    if [*a.shapes.items()] != [*b.shapes.items()]:
        return facts
    sets = [one.mask.region_indices().numpy() for one in stored]
    return facts | {"overlap": _overlap(*sets, a.size), "layers": _layers(stored, sets), "values": _values(stored)}


def _overlap(first: np.ndarray, second: np.ndarray, size: int) -> dict[str, Any]:
    a, b = len(first), len(second)
    return {
        "first": a,
        "second": b,
        "both": len(np.intersect1d(first, second, assume_unique=True)),
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
    owners = [np.searchsorted(region.starts, indices, side="right") - 1 for indices in sets]
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
