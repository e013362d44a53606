"""The files of one cell, and what is said when one of them is missing or not what it should be."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from stages.lib import paths
from stages.lib.errors import DataError, MaskError
from stages.lib.io import read_json

STAGES = ("evaluate", "calibration", "ood")
PER_SEED = ("calibration", "ood")
SHOWN = 10


@dataclass(frozen=True)
class CellFiles:
    """What the stages wrote about one (task, seed): scores of each stage, and the mask file's header."""

    task: str
    seed: int
    scores: dict[str, dict[str, Any]]
    mask: dict[str, Any]

    def values(self, stage: str, test_set: str, variant: str) -> dict[str, Any]:
        """The numbers of one variant on one test set; raises DataError if the file hasn't got them."""
        try:
            return self.scores[stage]["scores"][test_set][variant]
        except (KeyError, TypeError):
            path = paths.scores(stage, self.task, self.seed)
            raise DataError(
                f"{path}: has no scores of {variant} on {test_set}; {_makes(stage, self.task, self.seed)}"
            ) from None

    def same_rows(self, stage: str, scores: dict[str, Any], calibration: dict[str, Any]) -> None:
        """Raise DataError unless the scores of `stage` and the calibration are of equally many test rows."""
        if scores["n"] != calibration["n"]:
            path = paths.scores("calibration", self.task, self.seed)
            makes = _makes("calibration", self.task, self.seed)
            raise DataError(f"{path}: is about {calibration['n']} test rows, {stage} about {scores['n']}; {makes}")


def require_cells(tasks: list[str], seeds: list[int]) -> None:
    """Raise DataError that names the missing files of these cells, each with the `dvc repro` that makes it."""
    missing = [
        f"{path}: not there; {_makes(stage, task, seed)}"
        for task in tasks
        for seed in seeds
        for stage, path in _files(task, seed).items()
        if not path.exists()
    ]
    if missing:
        more = [f"and {len(missing) - SHOWN} more files; `dvc repro` makes them all"] if len(missing) > SHOWN else []
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))


def read_cell(task: str, seed: int) -> CellFiles:
    """Read the files of one cell; raises DataError or MaskError that names a damaged one."""
    scores = {stage: read_json(paths.scores(stage, task, seed)) for stage in STAGES}
    return CellFiles(task, seed, scores, read_mask_header(paths.learned(task, seed)))


def read_mask_header(path: Path) -> dict[str, Any]:
    """What a mask file says about itself: selected, graftable, model_parameters, model, mode, k, ...

    Does what `stages.lib.graft.mask_file.read_header` does, without the seconds that torch takes to load.
    """
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads(file.metadata()["graft"])
        return {name: header[name] for name in ("selected", "graftable", "model_parameters", "model", "mode", "k")}
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise MaskError(f"{path}: not a mask file, or damaged: {error!r}") from error


def _files(task: str, seed: int) -> dict[str, Path]:
    return {**{stage: paths.scores(stage, task, seed) for stage in STAGES}, "mask": paths.learned(task, seed)}


def _makes(stage: str, task: str, seed: int) -> str:
    cell = seed if stage in PER_SEED else f"{task}-{seed}"
    return f"`dvc repro {stage}@{cell}` makes it"
