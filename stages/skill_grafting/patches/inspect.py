"""inspect: whose a mask is, how large, and where it lies."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..grafting.composition import KINDS, composition
from .card import made_with
from .patch_file import PatchContent, read_graft

COLUMNS = ("selected", "parameters", "share", "chance")


def inspect(mask: Path, as_json: bool) -> str:
    """Facts about a mask or patch, with both denominators of its size; raises MaskError if the file is damaged.

    layers, kinds: selected, parameters, share, chance (share of the graftable parameters), in the order of the model or of
    KINDS; a layer is numbered as in the parameters' names, null outside the layers.
    """
    path, found = read_graft(mask)
    stored, use = (found.stored, found.use) if isinstance(found, PatchContent) else (found, None)
    about, selection = stored.about, stored.mask
    whole, rows = about.get("model_parameters"), composition(selection.counts, selection.region.shapes)
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
        before = sums.get(row[by], dict.fromkeys(COLUMNS, 0))
        sums[row[by]] = {by: row[by], **{measure: before[measure] + row[measure] for measure in COLUMNS}}
    return [*sums.values()]


def _in_words(facts: dict[str, Any]) -> str:
    """A line for each value, and a table for each list of rows."""
    plain = {"tablefmt": "plain", "floatfmt": ".4g"}
    values = [fact for fact in facts.items() if not isinstance(fact[1], list)]
    tables = [tabulate(facts[name], headers="keys", missingval="none", **plain) for name in ("layers", "kinds")]
    return "\n\n".join([tabulate(values, missingval="unknown", disable_numparse=[0], **plain), *tables])
