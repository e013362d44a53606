"""reference: predictions of the pretrained and fine-tuned models of one seed, their accuracy on the training rows, and label words fitted on these.

Kept apart from `evaluate` because no mask and no sparsity changes it.
"""

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.io import read_rows, write_json
from stages.text.models.evaluation import Evaluation
from stages.text.models.label_model import LabelModel, reset_to_pretrained
from stages.text.scores.classification import accuracy
from stages.text.scores.label_words import fit_label_words
from stages.text.scores.predictions import write_predictions
from stages.text.scores.variants import FINETUNED, LABEL_WORDS, PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import ModelParams
from stages.workflow.cells.scoring import cell_sets, train_set
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


def predict_reference(task: str, seed: int, settings: ModelParams, machine: Runtime) -> str:
    """Store what the fine-tuned and the pretrained model of a cell predict; returns a line for the log."""
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, machine)
    sets, trained_on = cell_sets(task, seed), train_set(task)
    evaluation = Evaluation(model, {**sets, trained_on: read_rows(paths.sample(task, seed, "train"))}, variants=2)
    with evaluation.progress(f"reference {task}-{seed}"):
        evaluation.predict(FINETUNED)
        reset_to_pretrained(model, read_anatomy(paths.PRETRAINED), paths.PRETRAINED)
        evaluation.predict(PRETRAINED)
    predictions, fitted = evaluation.predictions(), {}
    logits, labels = predictions.logits[trained_on], predictions.labels[trained_on]
    if settings.mode != "standard":  # a new head has learned its labels with the rest of the model
        words = fit_label_words(logits[PRETRAINED], labels)
        fitted["label_words"] = words.record()
        for variants in predictions.logits.values():
            variants[LABEL_WORDS] = words(variants[PRETRAINED])
    write_predictions(paths.logits("reference", task, seed), predictions.part(sets))
    shares = {variant: accuracy(values, labels) for variant, values in logits.items()}
    write_json(paths.record("reference", task, seed), {"train_accuracy": shares, **fitted})
    return f"reference {task}-{seed}: {evaluation.describe()}"


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Store the logits of both models on every task's test set and its out-of-distribution sets."""
    for task in params.tasks:
        print(predict_reference(task, seed, params.model, machine))
