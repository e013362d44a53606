"""The numbers of merged models for `dvc metrics`: nested dicts of n, mean and sd, nothing else.

model       group -> method -> score, own, retained, alpha, bytes -> n, mean, sd over seeds, of means over tasks;
            the single-task models are methods too
task        group -> task -> method -> n, mean, sd of the score over seeds
collisions  group -> union, colliding, opposed, chance_union, chance_colliding, graftable -> mean over seeds
difference  group -> method, against the stitched mean -> n, mean, sd, low, high, positive over cells
"""

from typing import Any

from stages.lib.report.stats import clean, mean_of, paired
from stages.merge.report.choosing import by_cell, by_seed
from stages.merge.report.collecting import SINGLES, Merged
from stages.merge.report.findings import STITCHED

COUNTS = ("graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding")


def summary(merged: Merged) -> dict[str, Any]:
    """All of it; empty if combination is off."""
    if not merged.methods:
        return {}
    parts = {"model": _models, "task": _tasks, "collisions": _collisions, "difference": _differences}
    found = {name: {group: part(merged, group) for group in merged.groups} for name, part in parts.items()}
    return clean({name: {group: part for group, part in groups.items() if part} for name, groups in found.items()})


def _models(merged: Merged, group: str) -> dict[str, Any]:
    found = {}
    for method in (*SINGLES, *merged.methods):
        measures = ("score", "retained") if method in SINGLES else ("score", "own", "retained")
        found[method] = {name: mean_of(by_seed(merged, group, method, name)).numbers() for name in measures}
    frame = merged.frames["models"]
    for method, rows in frame[frame.group == group].groupby("method", sort=False):
        found[method] |= {"bytes": mean_of(rows.bytes).numbers()}
        if rows.alpha.notna().any():
            found[method]["alpha"] = mean_of(rows.alpha).numbers()
    return found


def _tasks(merged: Merged, group: str) -> dict[str, Any]:
    scores = {method: by_cell(merged, group, method) for method in (*SINGLES, *merged.methods)}
    return {
        task: {method: mean_of(values.xs(task, level="task")).numbers() for method, values in scores.items()}
        for task in merged.groups[group]
    }


def _collisions(merged: Merged, group: str) -> dict[str, Any]:
    frame = merged.frames["collisions"]
    rows = frame[frame.group == group]
    return {name: float(rows[name].mean()) for name in COUNTS} if len(rows) else {}


def _differences(merged: Merged, group: str) -> dict[str, Any]:
    if STITCHED not in merged.methods:
        return {}
    first = by_cell(merged, group, STITCHED)
    return {
        method: paired(first, by_cell(merged, group, method)).numbers()
        for method in merged.methods
        if method != STITCHED
    }
