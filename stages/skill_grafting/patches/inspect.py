"""inspect: whose a mask is, how large, and where it lies."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..metrics.composition import KINDS, composition
from .card import made_with
from .patch_file import PatchContent, read_graft

COLUMNS = ("selected", "parameters", "share", "chance")


def inspect(mask: Path, as_json: bool) -> str:
    """Facts about a mask or patch, with both denominators of its size; raises MaskError if the file is damaged.

    layers, kinds: selected, parameters, share, chance (share of the graftable parameters), in the order of the model or of
    KINDS; a layer is numbered as in the parameters' names, null outside the layers.
    """
    path, found = read_graft(mask)
    patch = found if isinstance(found, PatchContent) else None
    stored, use = (patch.stored, patch.use) if patch else (found, None)
    about, selection = stored.about, stored.mask
    whole = patch.region.size if patch else about.get("model_parameters")
    rows = composition(selection.counts, selection.region.shapes)
    facts = {
        "file": str(path),
        "form": "patch" if use else "mask",
        "base": use.base if use else about.get("model"),
        "task": use.title if use else about.get("task"),
        "found by": made_with(selection.record) or about.get("localizer"),
        "selected": selection.selected,
        "graftable": selection.region.size,
        "sparsity": selection.sparsity,
        "model_parameters": whole,
        "share_of_model": selection.selected / whole if whole else None,
        "tensors": len(selection.counts),
        "head_parameters": sum(values.numel() for values in stored.head.values()),
        "layers": _added(rows, "layer"),
        "kinds": _added(sorted(rows, key=lambda row: KINDS.index(row["kind"])), "kind"),
    }
    return json.dumps(facts, indent=2) if as_json else _in_words(facts)


def _added(rows: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows of `composition` summed over everything but `by`, in the order of its first appearance."""
    sums: dict[Any, dict[str, Any]] = {}
    for row in rows:
        found = sums.setdefault(row[by], {by: row[by], **dict.fromkeys(COLUMNS, 0)})
        for measure in COLUMNS:
            found[measure] += row[measure]
    return [*sums.values()]


def _in_words(facts: dict[str, Any]) -> str:
    """A line for each value, and a table for each list of rows."""
    values = {name: value for name, value in facts.items() if not isinstance(value, list)}
    lines = [tabulate(values.items(), tablefmt="plain", floatfmt=".4g", missingval="unknown", disable_numparse=[0])]
    for name in ("layers", "kinds"):
        lines.append(tabulate(facts[name], headers="keys", tablefmt="plain", floatfmt=".4g", missingval="none"))
    return "\n\n".join(lines)
