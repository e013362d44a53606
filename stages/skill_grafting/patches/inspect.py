"""inspect: whose a mask is, how large, and where it lies."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
        "title": use.title if use else about.get("task"),
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
    values = [fact for fact in facts.items() if not isinstance(fact[1], list)]
    tables = [[[*rows[0]], *(row.values() for row in rows)] for rows in facts.values() if isinstance(rows, list)]
    return "\n\n".join([_aligned(values, "<", "unknown"), *(_aligned(table, ">", "none") for table in tables)])


def _aligned(rows: Iterable[Iterable[object]], side: str, missing: str) -> str:
    """Rows in columns, the first flush left and the others at this side."""
    cells = [
        [missing if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<", *[side] * (len(widths) - 1)]
    lines = (map(format, row, map("{}{}".format, sides, widths)) for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)
