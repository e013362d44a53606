"""All records of task arithmetic as tidy frames."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from stages.lib import paths
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.composition import by_tensor
from stages.lib.metrics.overlap import chance_iou, iou
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.report.record_file import read_record

# these have no mask that was chosen by looking at the model
WHOLE = ("full", "linear")
COLUMNS = {
    "addition": ["method", "task", "seed", "n", "n_dev", "pretrained", "single", "full", "alpha", "accuracy", "by_own", "by_full"],
    "negation": ["method", "task", "seed", "n", "pretrained", "alpha", "accuracy", "control", "control_zero_shot",
        "control_accuracy", "control_kept", "weak_control"],
    "curve": ["method", "seed", "alpha", "normalised"],
    "localization": ["method", "trained_on", "task", "seed", "n", "accuracy", "pretrained", "ratio"],
    "cost": ["method", "task", "seed", "selected", "graftable"],
    "disentangle": ["method", "pair", "seed", "alpha1", "alpha2", "e1", "e2", "mean"],
    "pruned": ["kind", "scored_on", "task", "seed", "n", "accuracy", "pretrained", "ratio"],
    "overlap": ["variant", "task", "seed", "iou", "chance"],
    "tensors": ["method", "task", "seed", "tensor", "layer", "kind", "part", "parameters", "selected", "share"],
    "task_iou": ["method", "seed", "first", "second", "iou", "chance"],
    "method_iou": ["first", "second", "task", "seed", "iou", "chance"],
}  # fmt: skip
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Talos:
    """Tidy frames by name, with the columns of COLUMNS; those of a stage without cells are empty."""

    tasks: list[str]
    seeds: list[int]
    frames: dict[str, pd.DataFrame]
    off: list[str]


def collect(params: Any) -> Talos:
    """Read the records of the cells named by params.yaml; raises DataError for a missing one, MaskError for a damaged mask."""
    tasks, seeds = params.talos.tasks, params.talos.seeds
    rows: dict[str, Rows] = {name: [] for name in COLUMNS}
    for seed in seeds:
        _add_sensitivity(rows, tasks, seed)
        for method in params.edit.methods:
            _add_edits(rows, method, tasks, seed)
        for method in params.arithmetic.methods:
            _add_arithmetic(rows, method, tasks, seed)
        for method in params.disentangle.methods:
            _add_errors(rows, method, params.disentangle.pairs, seed)
        _add_masks(rows, [name for name in params.edit.methods if name not in WHOLE], tasks, seed)
    off = [name for name in ("edit", "arithmetic", "disentangle") if not getattr(params, name).methods or not seeds]
    off += [] if seeds else ["sensitivity"]
    return Talos(tasks, seeds, {name: _frame(rows[name], columns) for name, columns in COLUMNS.items()}, off)


def _frame(rows: Rows, columns: list[str]) -> pd.DataFrame:
    more = [name for row in rows for name in row if name not in columns]
    return pd.DataFrame(rows, columns=[*columns, *dict.fromkeys(more)])


def record(stage: str, axes: tuple[str, ...], name: str, seed: int) -> dict[str, Any]:
    """A record; raises DataError that names it and the command that makes it."""
    path = paths.reading_record(stage, axes, name, seed)
    made_by = f"`dvc repro stages/talos/dvc.yaml:{stage}@{'-'.join([*axes, str(seed)])}` makes it"
    return read_record(path, stage, made_by, ("stage",))


def _add_sensitivity(rows: dict[str, Rows], tasks: list[str], seed: int) -> None:
    for task in tasks:
        found = record("sensitivity", (), task, seed)
        shares = {row["variant"]: row for row in found["rows"]}
        start = shares.pop(PRETRAINED)["accuracy"]
        for name, row in shares.items():
            kind, _, scored_on = name.partition("_")
            rows["pruned"].append(
                {"kind": kind, "scored_on": scored_on, "task": task, "seed": seed, **_ratio(row, start)}
            )
        rows["overlap"] += [{**row, "task": task, "seed": seed} for row in found["overlaps"]]


def _add_edits(rows: dict[str, Rows], method: str, tasks: list[str], seed: int) -> None:
    for task in tasks:
        found = record("edit", (method,), task, seed)
        shares = {row["variant"]: row for row in found["rows"]}
        start = shares.pop(PRETRAINED)["accuracy"]
        cell = {"method": method, "task": task, "seed": seed}
        rows["localization"] += [{**cell, "trained_on": name, **_ratio(row, start)} for name, row in shares.items()]
        sizes = {name: found[name] for name in ("selected", "graftable")}
        rows["cost"].append({**cell, **sizes, **found["cost"]})


def _ratio(row: dict[str, Any], start: float) -> dict[str, Any]:
    share = row["accuracy"]
    return {"n": row["n"], "accuracy": share, "pretrained": start, "ratio": _share(share, start)}


def _share(accuracy: float, start: float) -> float | None:
    return accuracy / start if start else None


def _add_arithmetic(rows: dict[str, Rows], method: str, tasks: list[str], seed: int) -> None:
    for task in tasks:
        found = record("arithmetic", (method,), task, seed)
        shared = {name: found[name] for name in ("task", "seed", "n", "pretrained")}
        for merger, part in found["added"].items():
            name = method if merger == "sum" else merger
            own = {key: part[key] for key in ("alpha", "accuracy", "by_own", "by_full")}
            sizes = {key: found[key] for key in ("n_dev", "single", "full")}
            rows["addition"].append({**shared, "method": name, **sizes, **own})
            if task == tasks[0]:  # one alpha for all tasks, so every record has the same curve
                cell = {"method": name, "seed": seed}
                rows["curve"] += [{**cell, "alpha": alpha, "normalised": value} for alpha, value in part["curve"]]
        part = found["negated"]
        names = ("alpha", "accuracy", "control", "control_zero_shot", "control_accuracy", "weak_control")
        kept = _share(part["control_accuracy"], part["control_zero_shot"])
        rows["negation"].append(
            {**shared, "method": method, **{name: part[name] for name in names}, "control_kept": kept}
        )


def _add_errors(rows: dict[str, Rows], method: str, pairs: dict[str, str], seed: int) -> None:
    for first, second in pairs.items():
        name = f"{first}+{second}"
        found = record("disentangle", (method,), name, seed)
        rows["disentangle"] += [{"method": method, "pair": name, "seed": seed, **row} for row in found["rows"]]


def _add_masks(rows: dict[str, Rows], methods: list[str], tasks: list[str], seed: int) -> None:
    found: dict[tuple[str, str], np.ndarray] = {}
    size = 0
    for method in methods:
        for task in tasks:
            mask: GraftMask = read_mask(paths.edited(method, task, seed)).mask
            size, found[method, task] = mask.region.size, mask.region_indices().numpy()
            counts = {name: len(indices) for name, indices in mask.indices.items()}
            cell = {"method": method, "task": task, "seed": seed}
            rows["tensors"] += [{**cell, **row} for row in by_tensor(counts, mask.region.shapes)]
    for method in methods:
        for first, second in combinations(tasks, 2):
            both = _overlap(found[method, first], found[method, second], size)
            rows["task_iou"].append({"method": method, "seed": seed, "first": first, "second": second, **both})
    for first, second in combinations(methods, 2):
        for task in tasks:
            both = _overlap(found[first, task], found[second, task], size)
            rows["method_iou"].append({"first": first, "second": second, "task": task, "seed": seed, **both})


def _overlap(first: np.ndarray, second: np.ndarray, size: int) -> dict[str, float]:
    return {"iou": iou(first, second), "chance": chance_iou(len(first), len(second), size)}


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order in which they are compared, others after them as they come."""
    known = ("full", "linear", "attention", "ties", "dare", "lota", "talos", "random", "graft")
    found = [*dict.fromkeys(names)]
    return [*(name for name in known if name in found), *(name for name in found if name not in known)]
