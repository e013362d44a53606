"""The files that the report is made of, and what is said when one is missing or damaged."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.errors import DataError
from stages.lib.io import read_json

SHOWN = 10
# stage, values on its axes (as in the paths), file
Wanted = tuple[str, tuple[str, ...], Path]


def level_cells(params: Any) -> list[tuple[str, int]]:
    """(paradigm, seed) of every joint model."""
    return [*product(params.joint.paradigms, params.multitask.seeds)]


def transfer_cells(params: Any) -> list[tuple[str, str, str, int]]:
    """(paradigm, localizer, sparsity as in the paths, seed) of every matrix."""
    sizes = [str(sparsity) for sparsity in params.skill.sparsities]
    return [*product(params.joint.paradigms, params.skill.localizers, sizes, params.multitask.seeds)]


def require_files(root: Path, params: Any) -> None:
    """Raise DataError that names the missing files of the cells in params.yaml, each with what makes it."""
    missing = [
        f"{path}: not there; {made_by(stage, cell)}"
        for stage, cell, path in _wanted(params)
        if not (root / path).exists()
    ]
    if missing:
        more = [f"and {len(missing) - SHOWN} more files; `make multitask` makes them all"] * (len(missing) > SHOWN)
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))


def _wanted(params: Any) -> Iterable[Wanted]:
    for task in params.multitask.tasks:
        for paradigm, seed in level_cells(params):
            yield "level", (paradigm, str(seed)), paths.reading_record("level", (paradigm,), task, seed)
            yield "reference", (str(seed),), paths.predictions("reference", task, seed)
        for *axes, seed in transfer_cells(params):
            yield "transfer", (*axes, str(seed)), paths.reading_record("transfer", tuple(axes), task, seed)
            paradigm, localizer, sparsity = axes
            mask = paths.skill_mask(paradigm, localizer, sparsity, task, seed)
            yield "skill", (paradigm, localizer, str(seed)), mask


def made_by(stage: str, cell: Iterable[str]) -> str:
    """Which command makes the files of a cell."""
    file = "" if stage == "reference" else "stages/multitask/dvc.yaml:"
    return f"`dvc repro {file}{stage}@{'-'.join(cell)}` makes it"


def read_rows_of(root: Path, stage: str, axes: tuple[str, ...], task: str, seed: int) -> list[dict[str, Any]]:
    """Rows of one record; raises DataError that names one without rows."""
    path = root / paths.reading_record(stage, axes, task, seed)
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list):
        raise DataError(f"{path}: not a record of {stage}; {made_by(stage, (*axes, str(seed)))}")
    return record["rows"]
