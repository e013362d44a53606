"""Readers of what stages stored: tasks, rows, predictions, and the point that fine-tuning chose."""

from functools import reduce
from operator import or_
from typing import Any

from skill_grafting.data.tasks import TaskSpec
from skill_grafting.errors import ModelError
from skill_grafting.io import read_json, read_rows, require
from skill_grafting.metrics.predictions import Predictions, dev_set, read_predictions
from stages.workflow.core import paths


def read_task(name: str) -> TaskSpec:
    """The resolved task definition that fetch stored; raises DataError if it isn't there."""
    return TaskSpec.model_validate(read_json(require(paths.card(name), "fetch"))["task"])


def read_test_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """Test set name -> rows; the task's own comes first, then the others that fetch wrote, in alphabetical order."""
    sets = {task: read_rows(require(paths.sample(task, seed, "test"), f"sample@{task}-{seed}"))}
    for file in sorted(paths.ood_table(task, "x").parent.glob("*.jsonl")):
        sets[file.stem] = read_rows(file)
    return sets


def cell_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """The rows that the main pipeline predicts of a cell: its test sets, its own first, and behind them its dev rows."""
    return {**read_test_sets(task, seed), dev_set(task): read_rows(paths.sample(task, seed, "dev"))}


def read_cell(task: str, seed: int, dev: bool = False) -> Predictions:
    """Predictions by all models of a (task, seed) of the main pipeline, on its test sets or (`dev`) on its dev rows."""
    files = [paths.predictions(stage, task, seed) for stage in ("reference", "controls", "evaluate")]
    return reduce(or_, (read_predictions(file, dev) for file in files))


def chosen_point(task: str, seed: int) -> dict[str, Any]:
    """batch_size, learning_rate and steps of a cell's stored fine-tuning; raises ModelError if there is none, or if it was fine-tuned elsewhere."""
    file = paths.finetuned(task, seed) / "training.json"
    record = read_json(file, ModelError)
    if "chosen" not in record:
        raise ModelError(
            f"{file}: {record.get('checkpoint')} was fine-tuned elsewhere, so its batch size and steps aren't known, which this "
            "stage trains by; take it out (an empty list of its section), or set finetune.source=train"
        )
    return record["chosen"]
