"""Everything the report on continual learning is made of, read from the records of the sequences.

The cells are those that params.yaml names.  Files of other cells, left by an earlier run, are not
looked at, and a missing one stops the report rather than vanish from an average.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.continual.forgetting import average_accuracy, backward_transfer, forgetting, learning_accuracy
from stages.lib import paths
from stages.lib.errors import DataError
from stages.lib.report.record_file import read_record

CELL = ["method", "order", "seed"]
# Of one walk through a sequence, in the order in which they are reported.
MEASURES = {
    "average": average_accuracy,
    "learned": learning_accuracy,
    "forgetting": forgetting,
    "backward_transfer": backward_transfer,
}
MEMORY = ["head", "skill", "model", "region", "own"]


@dataclass(frozen=True)
class Sequences:
    """Tidy frames; measures are fractions 0..1.

    accuracy: a row for each method, order, seed, task and step since the task's own; step 0 is the
    task's own fine-tuned or pretrained model (`variant`), `length` the number of steps.  measure: a row for each method, order and seed.
    memory: a row for each method, order, seed and task: bytes kept after its step.  `orders`: name -> tasks.
    """

    methods: list[str]
    orders: dict[str, list[str]]
    seeds: list[int]
    accuracy: pd.DataFrame
    measure: pd.DataFrame
    memory: pd.DataFrame

    def steps(self, order: str | None = None) -> pd.DataFrame:
        """Rows about the sequences themselves, of one order or of all."""
        rows = self.accuracy[self.accuracy.step > 0]
        return rows if order is None else rows[rows.order == order]

    def alone(self, variant: str, order: str | None = None) -> pd.DataFrame:
        """Rows about the fine-tuned or pretrained model, each (order, seed, task) once."""
        rows = self.accuracy[self.accuracy.variant == variant].drop_duplicates(["order", "seed", "task"])
        return rows if order is None else rows[rows.order == order]


def collect(root: Path, settings: Any, orders: dict[str, list[str]]) -> Sequences:
    """Read the records of every method, order and seed of the section `sequence`.

    Raises DataError that names a missing record with the `dvc repro` that makes it, or one of other tasks.
    """
    chosen = {name: orders[name] for name in settings.orders} if settings.methods and settings.seeds else {}
    rows, memory = [], []
    for method, (order, tasks), seed in product(settings.methods, chosen.items(), settings.seeds):
        for task in tasks:
            record = _record(root, method, order, task, seed, tasks)
            cell = {"method": method, "order": order, "seed": seed, "task": task, "place": record["place"]}
            rows += [{**row, **cell, "length": len(tasks)} for row in record["rows"]]
            bytes_kept = {**record["kept_bytes"], "model": record["model_bytes"]}
            memory.append({**cell, **bytes_kept, **{name: record.get(name) for name in ("region", "own")}})
    accuracy = pd.DataFrame(rows, columns=[*CELL, "task", "place", "length", "step", "after", "variant", *NUMBERS])
    kept = pd.DataFrame(memory, columns=[*CELL, "task", "place", *MEMORY])
    methods = settings.methods if chosen else []
    return Sequences(methods, chosen, settings.seeds, accuracy, _measures(accuracy), kept)


NUMBERS = ["n", "accuracy", "accuracy_se", "score", "f1", "ece", "loss", "agreement", "unchanged", "agreement_with_own"]


def matrix(rows: pd.DataFrame) -> np.ndarray:
    """R[step, task] of one sequence, tasks in its order; NaN where a task was not learned yet."""
    return rows.pivot(index="step", columns="place", values="accuracy").sort_index().to_numpy(float)


def _record(root: Path, method: str, order: str, task: str, seed: int, tasks: list[str]) -> dict[str, Any]:
    path = root / paths.reading_record("sequence", (method, order), task, seed)
    made_by = f"`dvc repro stages/continual/dvc.yaml:sequence@{method}-{order}-{seed}` makes it"
    record = read_record(path, "sequence", made_by, ("rows", "place", "kept_bytes", "model_bytes"))
    if record.get("tasks") != tasks:
        raise DataError(f"{path}: is about other tasks than order.{order}; {made_by}")
    return record


def _measures(accuracy: pd.DataFrame) -> pd.DataFrame:
    steps = accuracy[accuracy.step > 0]
    found = [
        {**dict(zip(CELL, cell, strict=True)), **{name: of(matrix(rows)) for name, of in MEASURES.items()}}
        for cell, rows in steps.groupby(CELL, sort=False)
    ]
    return pd.DataFrame(found, columns=[*CELL, *MEASURES])
