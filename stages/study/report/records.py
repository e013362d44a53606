"""The records of the study: where they lie, and what is said when one is missing or damaged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib.errors import DataError
from stages.lib.io import read_json

# stage -> what the folders below metrics/<stage> and then the file are named after
AXES: dict[str, tuple[str, ...]] = {
    "anchor": ("seed", "task"),
    "sweep": ("localizer", "sparsity", "seed", "task"),
    "readout": ("readout", "localizer", "sparsity", "seed", "task"),
    "wise": ("seed", "task"),
    "peft": ("method", "seed", "task"),
    "paradigm": ("paradigm", "seed", "task"),
    "trajectory": ("seed", "task"),
}
HEADER = ("selected", "graftable", "model_parameters", "trained")
SHOWN = 10

Cell = Sequence[Any]


def record_path(root: Path, stage: str, cell: Cell) -> Path:
    """File of a cell, whose values are in the order of AXES."""
    *folders, task = map(str, cell)
    return root.joinpath("metrics", stage, *folders, f"{task}.json")


def mask_path(root: Path, cell: Cell) -> Path:
    """Mask file of a cell of the sweep."""
    *folders, task = map(str, cell)
    return root.joinpath("masks", "sweep", *folders, f"{task}.safetensors")


def require_records(root: Path, cells: Mapping[str, Sequence[Cell]]) -> None:
    """Raise DataError that names the missing files of these cells, each with the `dvc repro` that makes it."""
    wanted = [
        (stage, cell, path)
        for stage, group in cells.items()
        for cell in group
        for path in [record_path(root, stage, cell), *([mask_path(root, cell)] if stage == "sweep" else [])]
    ]
    missing = [f"{path}: not there; {made_by(stage, cell)}" for stage, cell, path in wanted if not path.exists()]
    if missing:
        more = [f"and {len(missing) - SHOWN} more files; `make study` makes them all"] if len(missing) > SHOWN else []
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))


def made_by(stage: str, cell: Cell) -> str:
    """Which command makes the files of a cell; one run of a stage makes those of all tasks."""
    item = "-".join(map(str, cell[:-1]))
    return f"`dvc repro stages/study/dvc.yaml:{stage}@{item}` makes it"


def read_record(root: Path, stage: str, cell: Cell) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of a record, each with the axes of its cell and the sizes of its header; and what it says of itself (`about`).

    Raises DataError that names a record without rows.
    """
    path = record_path(root, stage, cell)
    record = read_json(path)
    try:
        header = {name: record[name] for name in HEADER if name in record}
        axes = dict(zip(AXES[stage], cell, strict=True))
        rows = [{**header, **row, **axes} for row in record["rows"]]
        for row in rows:
            row["where"] = whereabouts(row["test_set"], row["task"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not a record of {stage}: {error!r}; {made_by(stage, cell)}") from None
    return rows, {**axes, **record.get("about", {})}


def whereabouts(test_set: str, task: str) -> str:
    """`id` for the task's own test set, `train` for its training rows, `ood` for everything else."""
    return {task: "id", f"{task}:train": "train"}.get(test_set, "ood")
