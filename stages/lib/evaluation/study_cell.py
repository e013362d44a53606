"""One (task, seed) of the study: its fine-tuned model, opened once and turned into one variant after another."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.lib import paths
from stages.lib.data.task_cards import read_task, read_test_sets
from stages.lib.evaluation.evaluation import Evaluation
from stages.lib.graft.region import Region
from stages.lib.io import read_rows, write_json
from stages.lib.metrics.predictions import Predictions, read_predictions, write_predictions
from stages.lib.metrics.scores import Row, score_rows
from stages.lib.metrics.variants import FINETUNED
from stages.lib.models.anatomy import HEAD, Anatomy, read_anatomy
from stages.lib.models.label_model import LabelModel, reset_to_pretrained
from stages.lib.runtime import Runtime


@dataclass(frozen=True)
class StudyCell:
    """The live model, pretrained but for a trained head, with both sets of the region's values (on its device)."""

    task: str
    seed: int
    model: LabelModel
    anatomy: Anatomy
    region: Region
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]
    head: dict[str, Tensor]

    @classmethod
    def open(cls, task: str, seed: int, settings: Any, region_groups: list[str], runtime: Runtime) -> "StudyCell":
        """Load the fine-tuned model of a cell and reset it; `settings` is the `model` section."""
        return cls.of(
            LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, runtime), seed, region_groups
        )

    @classmethod
    def of(
        cls, model: LabelModel, seed: int, region_groups: list[str], pretrained_folder: Path = paths.PRETRAINED
    ) -> "StudyCell":
        """Take a loaded fine-tuned model, which is reset."""
        anatomy = read_anatomy(pretrained_folder)
        region = anatomy.region(region_groups)
        parameters = model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in region.shapes}
        head = {name: parameters[name].detach().cpu().clone() for name in anatomy.names([HEAD])}
        pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, region.shapes)
        return cls(model.task.name, seed, model, anatomy, region, pretrained, finetuned, head)

    def rows(self, split: str) -> list[dict]:
        """The cell's own rows of a split."""
        return read_rows(paths.sample(self.task, self.seed, split))

    def evaluation(self, n: int, variants: int = 1, with_train: bool = False) -> Evaluation:
        """An evaluation of so many variants on the first n rows of every test set, and on the training rows if asked for."""
        return Evaluation(self.model, study_sets(self.task, self.seed, n, with_train), variants)

    def about(self) -> dict[str, Any]:
        """What every record of this cell says of it."""
        return {
            "task": self.task,
            "seed": self.seed,
            "graftable": self.region.size,
            "model_parameters": self.anatomy.parameters,
        }


def study_sets(task: str, seed: int, n: int, with_train: bool = False) -> dict[str, list[dict]]:
    """The first n rows (all if n is 0) of every test set of a cell, its own first, and its training rows if asked for."""
    sets = {name: rows[:n] if n else rows for name, rows in read_test_sets(task, seed).items()}
    if with_train:
        sets[train_set(task)] = read_rows(paths.sample(task, seed, "train"))
    return sets


def train_set(task: str) -> str:
    """Name of a task's training rows among its test sets."""
    return f"{task}:train"


def against_finetuned(predictions: Predictions, task: str, seed: int) -> Predictions:
    """These predictions with the fine-tuned model's for the same rows, as the anchor stored them."""
    anchor = read_predictions(paths.reading_logits("anchor", (), task, seed))
    logits = {name: {FINETUNED: anchor.logits[name][FINETUNED]} for name in predictions.logits}
    return predictions | Predictions(anchor.label_names, {name: anchor.labels[name] for name in logits}, logits)


def variant_rows(predictions: Predictions, task: str, seed: int, bins: int) -> list[Row]:
    """Scores of every variant in `predictions`, against the fine-tuned model."""
    rows = score_rows(against_finetuned(predictions, task, seed), read_task(task), bins)
    return [row for row in rows if row["variant"] in predictions.logits[row["test_set"]]]


def write_reading(
    stage: str, axes: tuple[str, ...], about: dict[str, Any], predictions: Predictions, rows: Iterable[Row]
) -> Path:
    """Store the logits and the record of one cell; gives the record's path."""
    task, seed = about["task"], about["seed"]
    write_predictions(paths.reading_logits(stage, axes, task, seed), predictions)
    record = paths.reading_record(stage, axes, task, seed)
    write_json(record, {"stage": stage, **about, "rows": list(rows)})
    return record
