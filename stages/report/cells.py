"""Everything the summary is made of: one row for each (task, seed, variant), read from the cells' files.

The cells are those that params.yaml names.  Files of other cells, left by an earlier run, are not
looked at, and a cell whose file is missing stops the summary rather than vanish from an average.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.data.tasks import TaskSpec
from stages.lib.io import read_json, require
from stages.lib.metrics.variants import VARIANTS
from stages.report.cell_files import CellFiles, read_cell, require_cells

MEASURES = ("score", "accuracy", "f1", "ece", "agreement", "retained")
SCORE_COLUMNS = ["task", "seed", "variant", "n", *MEASURES]
OOD_COLUMNS = ["task", "test_set", "seed", "variant", "n", *MEASURES]
RELIABILITY_COLUMNS = ["task", "seed", "variant", "bins", "bin", "count", "confidence", "accuracy"]
CONFIDENCE_COLUMNS = ["task", "seed", "variant", "low", "high", "count"]
MASK_COLUMNS = ["task", "seed", "selected", "graftable", "model_parameters", "model", "mode", "k"]


@dataclass(frozen=True)
class Cells:
    """Tidy tables of all cells, in the order of params.yaml; measures are fractions 0..1, NaN where undefined.

    `scores` is about a task's own test set and `ood` about other test sets; `reliability` and
    `confidence` hold the bins of the own test set; `masks` has one row for each (task, seed).
    `leaks` maps (task, test set) to the numbers of test texts: leaked, test, and used if known.
    """

    tasks: dict[str, TaskSpec]
    seeds: list[int]
    scores: pd.DataFrame
    ood: pd.DataFrame
    reliability: pd.DataFrame
    confidence: pd.DataFrame
    masks: pd.DataFrame
    leaks: dict[tuple[str, str], dict[str, int]]


def collect(tasks: list[str], seeds: list[int], sets: dict[str, list[str]]) -> Cells:
    """Read every (task, seed); `sets` maps a trained task to the data sets it is tested on besides.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or the file
    that doesn't hold what it should.
    """
    require_cells(tasks, seeds)
    pairs = [(task, test_set) for task in tasks for test_set in sets.get(task, [])]
    leaks = _leaks(pairs)
    cells = [read_cell(task, seed) for task in tasks for seed in seeds]
    return Cells(
        tasks={task: read_task(task) for task in tasks},
        seeds=list(seeds),
        scores=_frame(SCORE_COLUMNS, (row for cell in cells for row in _score_rows(cell, "evaluate", cell.task))),
        ood=_frame(
            OOD_COLUMNS,
            (row for cell in cells for test in sets.get(cell.task, []) for row in _score_rows(cell, "ood", test)),
        ),
        reliability=_frame(RELIABILITY_COLUMNS, (row for cell in cells for row in _bin_rows(cell))),
        confidence=_frame(CONFIDENCE_COLUMNS, (row for cell in cells for row in _bar_rows(cell))),
        masks=_frame(MASK_COLUMNS, ({**cell.mask, "task": cell.task, "seed": cell.seed} for cell in cells)),
        leaks=leaks,
    )


def _frame(columns: list[str], rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=columns)
    measures = [name for name in MEASURES if name in columns]
    # a column of nothing but undefined values would be one of objects
    return frame.astype(dict.fromkeys(measures, float))


def _score_rows(cell: CellFiles, stage: str, test_set: str) -> Iterable[dict[str, Any]]:
    for variant in VARIANTS:
        scores = cell.values(stage, test_set, variant)
        calibration = cell.values("calibration", test_set, variant)
        cell.same_rows(stage, scores, calibration)
        names = {"task": cell.task, "test_set": test_set, "seed": cell.seed, "variant": variant}
        yield {
            **names,
            "n": scores["n"],
            **{name: scores[name] for name in MEASURES if name != "ece"},
            "ece": calibration["ece"],
        }


def _bin_rows(cell: CellFiles) -> Iterable[dict[str, Any]]:
    for variant in VARIANTS:
        table = cell.values("calibration", cell.task, variant)
        bins = zip(table["bin_count"], table["bin_confidence"], table["bin_accuracy"], strict=True)
        for number, (count, confidence, accuracy) in enumerate(bins):
            names = {
                "task": cell.task,
                "seed": cell.seed,
                "variant": variant,
                "bins": len(table["bin_count"]),
                "bin": number,
            }
            yield {**names, "count": count, "confidence": confidence, "accuracy": accuracy}


def _bar_rows(cell: CellFiles) -> Iterable[dict[str, Any]]:
    for variant in VARIANTS:
        counts = cell.values("calibration", cell.task, variant)["histogram"]
        for number, count in enumerate(counts):
            edges = {"low": number / len(counts), "high": (number + 1) / len(counts)}
            yield {"task": cell.task, "seed": cell.seed, "variant": variant, **edges, "count": count}


def _leaks(pairs: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    if not pairs:
        return {}
    shared = read_json(require(paths.LEAKAGE, "fetch"))
    return {(task, test_set): shared.get(task, {}).get(test_set, {}) for task, test_set in pairs}
