"""The records of the surgical pipeline: where they lie, and what is said when one is missing."""

from itertools import product
from pathlib import Path
from typing import Any

from stages.lib.errors import DataError
from stages.lib.report.record_file import read_record

Cell = tuple[Any, ...]
SHOWN = 10


def cells_of(params: Any) -> dict[str, list[Cell]]:
    """Stage -> the cells that params.yaml names for it, (..., seed, task); none for a stage that is off."""
    fim, surgery, robustness = params.fim, params.surgery, params.robustness
    return {
        "fim": [*product(fim.seeds, fim.tasks)],
        "surgery": [*product(surgery.selections, surgery.seeds, surgery.tasks)],
        "robustness": [*product(robustness.seeds, robustness.tasks)],
    }


def read_all(root: Path, cells: dict[str, list[Cell]]) -> dict[str, dict[Cell, dict[str, Any]]]:
    """Stage -> cell -> record; raises DataError that names the missing files, each with what makes it."""
    wanted = {stage: {cell: record_path(root, stage, cell) for cell in group} for stage, group in cells.items()}
    missing = [
        f"{path}: not there; {_made_by(stage, cell)}"
        for stage, group in wanted.items()
        for cell, path in group.items()
        if not path.exists()
    ]
    if missing:
        more = [f"and {len(missing) - SHOWN} more"] if len(missing) > SHOWN else []
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))
    return {
        stage: {
            cell: read_record(path, stage, _made_by(stage, cell), ("stage", "rows")) for cell, path in group.items()
        }
        for stage, group in wanted.items()
    }


def _made_by(stage: str, cell: Cell) -> str:
    return f"`dvc repro stages/surgical/dvc.yaml:{stage}@{'-'.join(map(str, cell[:-1]))}` makes it"


def record_path(root: Path, stage: str, cell: Cell) -> Path:
    """File of a cell."""
    *folders, task = map(str, cell)
    return root.joinpath("metrics", stage, *folders, f"{task}.json")
