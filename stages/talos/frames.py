"""The records and masks of task arithmetic as tidy frames."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations, product

import numpy as np
import pandas as pd

from stages.lib.graft.mask_file import read_mask
from stages.lib.merging.arithmetic import normalised
from stages.lib.metrics.composition import by_tensor
from stages.lib.metrics.gain import relative_gain
from stages.lib.metrics.overlap import chance_iou, iou
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.report.load import Cell, Collected, Records, Row, frame_of, grid, require_files
from stages.lib.settings import Params
from stages.workflow.core import paths

# these have no mask that was chosen by looking at the model
WHOLE = ("full", "full_matched", "linear")
CELL = ["task", "seed"]
COLUMNS = {
    "addition": ["method", *CELL, "n", "n_dev", "majority", "pretrained", "single", "full", "alpha", "accuracy", "by_own", "by_full", "gain"],
    "negation": ["method", *CELL, "n", "pretrained", "alpha", "accuracy", "control", "control_majority", "control_zero_shot",
        "control_accuracy", "control_kept", "weak_control"],
    "curve": ["method", "seed", "alpha", "normalised"],
    "localization": ["method", "trained_on", *CELL, "n", "majority", "accuracy", "pretrained", "ratio"],
    "cost": ["method", *CELL, "selected", "graftable"],
    "disentangle": ["method", "pair", "seed", "n", "alpha1", "alpha2", "e1", "e2", "mean"],
    "pruned": ["kind", "scored_on", *CELL, "pruned", "n", "majority", "accuracy", "pretrained", "ratio"],
    "overlap": ["variant", *CELL, "iou", "chance"],
    "tensors": ["method", *CELL, "tensor", "layer", "kind", "part", "parameters", "selected", "share"],
    "task_iou": ["method", "seed", "first", "second", "iou", "chance"],
    "method_iou": ["first", "second", *CELL, "iou", "chance"],
}  # fmt: skip


def collect(params: Params) -> Collected:
    """Read the records of the cells that the settings name; raises DataError for a missing one, MaskError for a damaged mask.

    `gain` of an added model is its relative gain, of full fine-tuning's own single model, where that gained summary.least_gain.
    """
    tasks, seeds, least = params.talos.tasks, params.seeds, params.summary.least_gain
    pairs = [f"{first}+{second}" for first, second in params.disentangle.grid.pairs.items()]
    edited, scored, added, crossed = (
        Records("talos", stage, f"metrics/{stage}/{path}.json", cells)
        for stage, path, cells in (
            ("edit", "{method}/{seed}/{task}", grid(seed=seeds, method=params.edit.methods, task=tasks)),
            ("sensitivity", "{seed}/{task}", grid(seed=seeds, task=tasks)),
            ("arithmetic", "{method}/{seed}/{task}", grid(seed=seeds, method=params.arithmetic.methods, task=tasks)),
            ("disentangle", "{method}/{seed}/{pair}", grid(seed=seeds, method=params.disentangle.methods, pair=pairs)),
        )
    )
    require_files("make talos", edited, scored, added, crossed)
    curves = added.rows(partial(_curve_rows, least))
    rows = {
        "addition": added.rows(partial(_added_rows, least)),
        "negation": added.rows(_negated_rows),
        "curve": [row for row in curves if row["task"] == tasks[0]],  # one alpha for all tasks
        "localization": edited.rows(
            lambda cell, record: ({**row, **cell, "trained_on": row["variant"]} for row in _ratios(record))
        ),
        "cost": edited.rows(
            lambda cell, record: [{name: record[name] for name in ("selected", "graftable")} | record["cost"] | cell]
        ),
        "disentangle": crossed.rows(
            lambda cell, record: ({**row, **cell, "n": min(record["n"])} for row in record["rows"])
        ),
        "pruned": scored.rows(_pruned_rows),
        "overlap": scored.rows(lambda cell, record: ({**row, **cell} for row in record["overlaps"])),
        **_mask_rows([method for method in params.edit.methods if method not in WHOLE], tasks, seeds),
    }
    frames = {name: frame_of(rows[name], columns, more=name == "cost") for name, columns in COLUMNS.items()}
    frames["tensors"]["layer"] = pd.to_numeric(frames["tensors"].layer) + 1  # for people
    off = [records.stage for records in (edited, added, crossed, scored) if not records.cells]
    return Collected(tasks, seeds, frames, off)


def _ratios(record: Row) -> Iterator[Row]:
    """The rows of a record but for the pretrained model, whose accuracy theirs is divided by."""
    [start] = [row["accuracy"] for row in record["rows"] if row["variant"] == PRETRAINED]
    for row in record["rows"]:
        if row["variant"] != PRETRAINED:
            yield {**row, "pretrained": start, "ratio": normalised(row["accuracy"], start)}


def _pruned_rows(cell: Cell, record: Row) -> Iterator[Row]:
    for row in _ratios(record):
        kind, _, scored_on = row["variant"].partition("_")
        yield {**row, **cell, "pruned": record["pruned"], "kind": kind, "scored_on": scored_on}


def _added_rows(least: float, cell: Cell, record: Row) -> Iterator[Row]:
    """The sum of the method's vectors, and what else was merged of them, each a method."""
    for merger, part in record["added"].items():
        gain = relative_gain(part["accuracy"], record["pretrained"], record["full"], least)
        yield {**record, **part, **cell, "method": cell["method"] if merger == "sum" else merger, "gain": gain}


def _curve_rows(least: float, cell: Cell, record: Row) -> Iterator[Row]:
    for row in _added_rows(least, cell, record):
        yield from ({**row, "alpha": alpha, "normalised": value} for alpha, value in row["curve"])


def _negated_rows(cell: Cell, record: Row) -> list[Row]:
    part = record["negated"]
    kept = normalised(part["control_accuracy"], part["control_zero_shot"])
    return [{**record, **part, **cell, "control_kept": kept}]


def _mask_rows(methods: list[str], tasks: list[str], seeds: list[int]) -> dict[str, list[Row]]:
    """Where masks lie, and how alike those of two tasks and of two methods are."""
    rows: dict[str, list[Row]] = {"tensors": [], "task_iou": [], "method_iou": []}
    for seed in seeds:
        found = {}
        for method, task in product(methods, tasks):
            mask = read_mask(paths.edited(method, task, seed)).mask
            found[method, task] = mask.region_indices().numpy(), mask.region.size
            cell = {"method": method, "task": task, "seed": seed}
            rows["tensors"] += [{**row, **cell} for row in by_tensor(mask.counts, mask.region.shapes)]
        for method, (first, second) in product(methods, combinations(tasks, 2)):
            names = {"method": method, "seed": seed, "first": first, "second": second}
            rows["task_iou"].append(names | _overlap(found[method, first], found[method, second]))
        for (first, second), task in product(combinations(methods, 2), tasks):
            names = {"first": first, "second": second, "task": task, "seed": seed}
            rows["method_iou"].append(names | _overlap(found[first, task], found[second, task]))
    return rows


def _overlap(first: tuple[np.ndarray, int], second: tuple[np.ndarray, int]) -> Row:
    (one, size), (other, _) = first, second
    return {"iou": iou(one, other), "chance": chance_iou(len(one), len(other), size)}
