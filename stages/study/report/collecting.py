"""Everything the study's tables and figures are made of, read from the files of its stages.

The cells are those that the caller names.  Files of other cells, left by an earlier run, are not
looked at, and a cell whose file is missing stops the study rather than vanish from an average.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stages.study.report.masks import composition_rows, localizer_overlaps, task_overlaps
from stages.study.report.records import AXES, Cell, read_record, require_records

MEASURES = ("score", "accuracy", "f1", "ece", "agreement", "retained", "loss")
NUMBERS = ("sparsity", "alpha", "step", "n", "accuracy_se", "selected", "graftable", "model_parameters", "trained")
TEXTS = ("task", "seed", "test_set", "where", "variant", "localizer", "readout", "method", "paradigm")
MASK_FRAMES = {
    "composition": [*AXES["sweep"], "layer", "kind", "selected", "parameters", "share", "chance"],
    "localizer_overlap": ["sparsity", "seed", "task", "first", "second", "iou", "chance"],
    "task_overlap": ["localizer", "sparsity", "seed", "first", "second", "overlap", "chance"],
    "cost": [*AXES["sweep"], "seconds", "gradient_examples"],
}


@dataclass(frozen=True)
class Study:
    """Tidy frames by stage, plus composition, localizer_overlap, task_overlap and cost; measures are fractions 0..1.

    A stage's frame has a row for each record row, with the columns TEXTS, NUMBERS and MEASURES, NaN
    or None where a stage has no such axis.  `off` names the stages without cells; their frames are empty.
    """

    tasks: list[str]
    seeds: list[Any]
    frames: dict[str, pd.DataFrame]
    off: list[str]

    def rows(self, stage: str, where: str = "id") -> pd.DataFrame:
        """Rows of a stage on the own test set (`id`), on others (`ood`) or on training rows (`train`)."""
        frame = self.frames[stage]
        return frame[frame["where"] == where]


def collect(root: Path, cells: Mapping[str, Sequence[Cell]]) -> Study:
    """Read the cells: stage -> lists of axis values in the order of AXES[stage], as they stand in the paths.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or a record that
    isn't one; MaskError for a damaged mask.  The order of tasks and seeds is that of the cells.
    """
    require_records(root, cells)
    frames, abouts = {}, []
    for stage in AXES:
        rows: list[dict[str, Any]] = []
        for cell in cells.get(stage, []):
            found, about = read_record(root, stage, cell)
            rows += found
            if stage == "sweep":
                abouts.append(about)
        frames[stage] = _tidy(rows)
    named = [cell for stage in AXES for cell in cells.get(stage, [])]
    return Study(
        tasks=_distinct(cell[-1] for cell in named),
        seeds=_distinct(cell[-2] for cell in named),
        frames=frames | _mask_frames(root, cells.get("sweep", []), abouts),
        off=[stage for stage in AXES if not cells.get(stage)],
    )


def _mask_frames(root: Path, sweep: Sequence[Cell], abouts: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    rows = {
        "composition": composition_rows(root, sweep),
        "localizer_overlap": localizer_overlaps(root, sweep),
        "task_overlap": task_overlaps(root, sweep),
        "cost": abouts,
    }
    frames = {name: pd.DataFrame(rows[name], columns=columns) for name, columns in MASK_FRAMES.items()}
    return {name: frame.assign(sparsity=pd.to_numeric(frame.sparsity)) for name, frame in frames.items()}


def _tidy(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*TEXTS, *NUMBERS, *MEASURES])
    # an undefined measure is null in JSON
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype(float) for name in (*NUMBERS, *MEASURES)})


def _distinct(values: Iterable[Any]) -> list[Any]:
    return [*dict.fromkeys(values)]
