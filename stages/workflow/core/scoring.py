"""One (task, seed) of the study: the rows it is measured on, its reference predictions, and its records."""

from collections.abc import Iterable
from typing import Any

from skill_grafting.io import read_rows, write_sealed
from skill_grafting.metrics.predictions import Predictions, read_predictions, write_predictions
from skill_grafting.metrics.scores import Row, score_rows
from skill_grafting.metrics.variants import FINETUNED
from skill_grafting.models.evaluation import Evaluation
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell
from stages.workflow.core.stored import read_task, read_test_sets


def study_evaluation(cell: GraftCell, n: int, variants: int = 1, with_train: bool = False) -> Evaluation:
    """An evaluation of so many variants on the first n rows of every test set, and on the training rows if asked for."""
    return Evaluation(cell.model, study_sets(cell.task, cell.seed, n, with_train), variants)


def study_sets(task: str, seed: int, n: int, with_train: bool = False) -> dict[str, list[dict]]:
    """The first n rows (all if n is 0) of every test set of a cell, its own first, and its training rows if asked for."""
    sets = {name: rows[: n or None] for name, rows in read_test_sets(task, seed).items()}
    if with_train:
        sets[train_set(task)] = read_rows(paths.sample(task, seed, "train"))
    return sets


def train_set(task: str) -> str:
    """Name of a task's training rows among its test sets."""
    return f"{task}:train"


def against_finetuned(
    predictions: Predictions, task: str, seed: int, stage: str = "anchor", axes: tuple[str, ...] = ()
) -> Predictions:
    """These predictions with the fine-tuned model's for the same rows, as a stage stored them."""
    stored = read_predictions(paths.stage_logits(stage, axes, task, seed))
    return predictions | stored.part(predictions.logits, [FINETUNED])


def variant_rows(
    predictions: Predictions, task: str, seed: int, bins: int, stage: str = "anchor", axes: tuple[str, ...] = ()
) -> list[Row]:
    """Scores of every variant in `predictions`, against the fine-tuned model that the stage stored at these axes."""
    rows = score_rows(against_finetuned(predictions, task, seed, stage, axes), read_task(task), bins)
    return [row for row in rows if row["variant"] in predictions.logits[row["test_set"]]]


def write_record(
    stage: str, axes: tuple[str, ...], about: dict[str, Any], predictions: Predictions, rows: Iterable[Row]
) -> None:
    """Store the logits and the record of one cell."""
    task, seed = about["task"], about["seed"]
    write_predictions(paths.stage_logits(stage, axes, task, seed), predictions)
    write_sealed(paths.stage_record(stage, axes, task, seed), {"stage": stage, **about, "rows": list(rows)})
