"""The rows that the models of a (task, seed) are measured on, and what is stored of them: predictions and records."""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from skill_grafting.support.io import read_rows, write_json
from stages.text.scores.predictions import Predictions, dev_set, read_predictions, write_predictions
from stages.text.scores.scores import Row, score_rows
from stages.text.scores.variants import FINETUNED
from stages.workflow.cells.stored import read_task, read_test_sets
from stages.workflow.stage import paths


def cell_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """The rows that the main pipeline predicts of a cell: its test sets, its own first, and behind them its dev rows."""
    return {**read_test_sets(task, seed), dev_set(task): read_rows(paths.sample(task, seed, "dev"))}


def read_cell(task: str, seed: int, dev: bool = False) -> Predictions:
    """Predictions by all models of a (task, seed) of the main pipeline, on its test sets or (`dev`) on its dev rows."""
    files = [paths.logits(stage, task, seed) for stage in ("reference", "controls", "evaluate")]
    return reduce(or_, (read_predictions(file, dev) for file in files))


def study_sets(task: str, seed: int, n: int, with_train: bool = False) -> dict[str, list[dict]]:
    """The first n rows (all if n is 0) of every test set of a cell, its own first, and its training rows if asked for."""
    sets = {name: rows[: n or None] for name, rows in read_test_sets(task, seed).items()}
    if with_train:
        sets[train_set(task)] = read_rows(paths.sample(task, seed, "train"))
    return sets


def train_set(task: str) -> str:
    """Name of a task's training rows among its test sets."""
    return f"{task}:train"


def variant_rows(
    predictions: Predictions, task: str, seed: int, bins: int, stage: str = "anchor", axes: tuple[str, ...] = ()
) -> list[Row]:
    """Scores of every variant in `predictions`, against the fine-tuned model on the same rows, as the stage stored it at these axes."""
    stored = read_predictions(paths.logits(stage, task, seed, *axes)).part(predictions.logits, [FINETUNED])
    rows = score_rows(predictions | stored, read_task(task), bins)
    return [row for row in rows if row["variant"] in predictions.logits[row["test_set"]]]


def write_record(
    stage: str, axes: tuple[str, ...], about: dict[str, Any], predictions: Predictions, rows: Iterable[Row]
) -> None:
    """Store the logits and the record of one cell."""
    task, seed = about["task"], about["seed"]
    write_predictions(paths.logits(stage, task, seed, *axes), predictions)
    write_json(paths.record(stage, task, seed, *axes), {"stage": stage, **about, "rows": list(rows)})
