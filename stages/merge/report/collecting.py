"""Everything the tables and figures of merged models are made of, read from the records of combination.

The cells are those of params.yaml.  Records of others, left by an earlier run, are not looked at, and
one that is missing stops the report rather than vanish from an average.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib import paths
from stages.lib.errors import DataError
from stages.lib.io import read_json
from stages.lib.merging.names import KINDS, MERGED
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED

CELL = ["group", "seed", "task"]
SINGLES = (PRETRAINED, FINETUNED, GRAFTED)
SHOWN = 10
UNDEFINED = float("nan")
FRAMES = {
    "scores": ["group", "method", "seed", "task", "n", "score", "accuracy", "ece", "retained", "single", "own"],
    "models": ["group", "method", "seed", "alpha", "bytes", "head_bytes", "single_bytes"],
    "dev": ["group", "method", "seed", "alpha", "normalised"],
    "collisions": ["group", "seed", "tasks", "graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding"],
}  # fmt: skip


@dataclass(frozen=True)
class Merged:
    """groups: name -> tasks.  Tidy frames, measures as fractions 0..1:

    scores: one row for each (group, method, seed, task); the single-task models are methods too, called
    pretrained, finetuned and grafted.  `single` is the score of the task's own model of the same kind,
    `own` is score / single and `retained` score / fine-tuned score.
    models: one row for each merged model.  dev: its curve of alphas.  collisions: one row for each
    (group, seed) that has grafts.
    """

    groups: dict[str, list[str]]
    methods: list[str]
    seeds: list[int]
    frames: dict[str, pd.DataFrame]

    def scores(self, group: str, method: str) -> pd.DataFrame:
        """Rows of one method, merged or single-task."""
        frame = self.frames["scores"]
        return frame[(frame.group == group) & (frame.method == method)]


def collect(root: Path, groups: dict[str, list[str]], methods: list[str], seeds: list[int]) -> Merged:
    """Read the records; raises DataError that names each missing one with the `dvc repro` that makes it."""
    cells = [*product(methods, groups, seeds)]
    _require(root, cells)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in FRAMES}
    seen: set[tuple[str, Any]] = set()
    for method, group, seed in cells:
        path = root / paths.merged_record(method, group, seed)
        try:
            _read(read_json(path), rows, seen)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: not a record of combination: {error!r}; {_made_by(method, seed)}") from None
    frames = {name: pd.DataFrame(rows[name], columns=columns) for name, columns in FRAMES.items()}
    # null where the fine-tuned model scores 0
    frames["scores"]["retained"] = pd.to_numeric(frames["scores"]["retained"])
    return Merged(groups, methods if groups and seeds else [], seeds, frames)


def _require(root: Path, cells: list[tuple[str, str, int]]) -> None:
    missing = [
        f"{path}: not there; {_made_by(method, seed)}"
        for method, group, seed in cells
        if not (path := root / paths.merged_record(method, group, seed)).exists()
    ]
    if missing:
        more = [f"and {len(missing) - SHOWN} more files; `make merge` makes them all"] if len(missing) > SHOWN else []
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))


def _made_by(method: str, seed: int) -> str:
    return f"`dvc repro stages/merge/dvc.yaml:combination@{method}-{seed}` makes it"


def _read(record: dict[str, Any], rows: dict[str, list[dict[str, Any]]], seen: set[tuple[str, Any]]) -> None:
    """Add what one record says; what all methods have in common is taken from the first."""
    cell = {name: record[name] for name in ("group", "method", "seed")}
    place = (cell["group"], cell["seed"])
    scores = {(row["task"], row["variant"]): row for row in record["rows"]}
    single = {task: scores[task, KINDS[cell["method"]]]["score"] for task in record["tasks"]}
    for (task, variant), row in scores.items():
        if variant == MERGED:
            own = row["score"] / single[task] if single[task] else UNDEFINED
            rows["scores"].append({**row, **cell, "single": single[task], "own": own})
        elif variant in SINGLES and ("scores", *place) not in seen:
            rows["scores"].append({**row, **cell, "method": variant})
    seen.add(("scores", *place))
    sizes = {name: record[name] for name in ("bytes", "head_bytes")}
    singles = sum(record.get("single_bytes", [record["bytes"]] * len(record["tasks"])))
    rows["models"].append({**cell, **sizes, "single_bytes": singles, "alpha": record.get("alpha", UNDEFINED)})
    rows["dev"] += [{**cell, **point} for point in record.get("dev", [])]
    if "collisions" in record and ("collisions", *place) not in seen:
        seen.add(("collisions", *place))
        shared = {"tasks": len(record["tasks"]), "graftable": record["graftable"]}
        rows["collisions"].append({**cell, **shared, **record["collisions"]})
