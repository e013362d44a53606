"""The fine-tuned and the pretrained model of a cell, and the rows that the main pipeline predicts."""

from skill_grafting.io import read_rows
from skill_grafting.metrics.predictions import dev_set, write_predictions
from skill_grafting.metrics.variants import FINETUNED, PRETRAINED
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.models.label_model import LabelModel, reset_to_pretrained
from skill_grafting.runtime import Runtime
from skill_grafting.settings import ModelParams
from stages.workflow.core import paths
from stages.workflow.core.stored import read_task, read_test_sets


def cell_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """The rows that the main pipeline predicts of a cell: its test sets, its own first, and behind them its dev rows."""
    return {**read_test_sets(task, seed), dev_set(task): read_rows(paths.sample(task, seed, "dev"))}


def predict_reference(task: str, seed: int, settings: ModelParams, machine: Runtime) -> str:
    """Store what the fine-tuned and the pretrained model of a cell predict; returns a line for the log."""
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, machine)
    evaluation = Evaluation(model, cell_sets(task, seed), variants=2)
    with evaluation.progress(f"reference {task}-{seed}"):
        evaluation.predict(FINETUNED)
        reset_to_pretrained(model, read_anatomy(paths.PRETRAINED), paths.PRETRAINED)
        evaluation.predict(PRETRAINED)
    write_predictions(paths.predictions("reference", task, seed), evaluation.predictions())
    return f"reference {task}-{seed}: {evaluation.describe()}"
