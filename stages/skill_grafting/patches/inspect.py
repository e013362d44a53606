"""inspect: whose a mask is, how large, where it lies, what moved most."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

from ..errors import MaskError
from ..grafting.apply import values_at
from ..metrics.composition import KINDS, composition
from ..models.anatomy import FILE
from .base import open_base
from .patch_file import GraftFile, read_graft
from .paths import PRETRAINED

LARGEST = 5
COLUMNS = ("selected", "parameters", "share", "chance")


def inspect(mask: Path, base: Path | None, as_json: bool) -> str:
    """Facts about a mask or patch: `identity` and more.

    layers, kinds: selected, parameters, share, chance (share of the graftable parameters), in the
    order of the model or of KINDS; a layer is numbered as in the parameters' names, null outside the layers.
    largest: name, place, before, after of the parameters that moved most, null if the base model isn't
    known.  Raises MaskError if the file is damaged or not for the model in `base`, if one is given.
    """
    graft = read_graft(mask)
    counts, shapes = graft.stored.mask.counts, graft.stored.mask.region.shapes
    rows = composition(counts, shapes)
    facts = {
        **identity(graft),
        "tensors": {"selected_in": len(counts), "graftable": len(shapes)},
        "head": {name: list(values.shape) for name, values in graft.stored.head.items()},
        "layers": _added(rows, "layer"),
        "kinds": _added(sorted(rows, key=lambda row: KINDS.index(row["kind"])), "kind"),
        "largest": _largest(graft, base),
    }
    return _shown(facts, as_json)


def identity(graft: GraftFile) -> dict[str, Any]:
    """The origin of a mask: file, form, model, fingerprint, task, seed, localizer, and its size with both denominators."""
    mask, about = graft.stored.mask, graft.stored.about
    whole = about.get("model_parameters")
    return {
        "file": str(graft.path),
        "form": "patch" if graft.use else "mask",
        "model": about.get("model"),
        "fingerprint": graft.use.fingerprint if graft.use else about.get("fingerprint"),
        "task": about.get("task"),
        "seed": about.get("seed"),
        "localizer": about.get("localizer"),
        "selected": mask.selected,
        "graftable": mask.region.size,
        "sparsity": mask.sparsity,
        "model_parameters": whole,
        "share_of_model": mask.selected / whole if whole else None,
    }


def _shown(facts: dict[str, Any], as_json: bool) -> str:
    """Facts for machines, or for people: a line for each value, and a table for each list of rows."""
    if as_json:
        return json.dumps(facts, indent=2)
    tables = {name: rows for name, rows in facts.items() if name in ("layers", "kinds", "largest") and rows}
    lines = [f"{name}: {_plain(value)}" for name, value in facts.items() if name not in tables]
    for name, rows in tables.items():
        lines += ["", f"{name}:", tabulate(rows, headers="keys", tablefmt="plain", floatfmt=".4g", missingval="none")]
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _added(rows: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows of `composition` summed over everything but `by`, in the order of its first appearance."""
    sums: dict[Any, dict[str, Any]] = {}
    for row in rows:
        found = sums.setdefault(row[by], {by: row[by], **dict.fromkeys(COLUMNS, 0)})
        for measure in COLUMNS:
            found[measure] += row[measure]
    return [*sums.values()]


def _largest(graft: GraftFile, folder: Path | None) -> list[dict[str, Any]] | None:
    """The parameters that moved furthest, furthest first, ties in order."""
    if folder is None and not (PRETRAINED / FILE).is_file():
        return None
    # the pipeline's own may be any model, and none is imported anew for that
    known = graft if folder else replace(graft, use=None)
    region, mask, after = graft.stored.mask.region, graft.stored.mask, graft.stored.values
    base = open_base(folder or PRETRAINED, known)
    try:
        base.require(known)
    except MaskError:
        if folder:
            raise
        return None
    before = values_at(base.tensors, mask)
    names = [name for name in region.shapes if name in mask.indices]
    old, new = (torch.cat([torch.empty(0), *(values[name] for name in names)]) for values in (before, after))
    rows = []
    for number in torch.sort((new - old).abs(), descending=True, stable=True).indices[:LARGEST]:
        [(name, index)] = region.split(mask.region_indices()[number].reshape(1)).items()
        # torch.unravel_index would load a second's worth of libraries
        place = [int(part) for part in np.unravel_index(int(index), region.shapes[name])]
        rows.append({"name": name, "place": place, "before": float(old[number]), "after": float(new[number])})
    return rows
