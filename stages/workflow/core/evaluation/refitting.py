"""The head refitted to what the rest of a model gives it, in the same way for the fine-tuned model and for its graft."""

from typing import Any

from skill_grafting.io import read_rows
from skill_grafting.metrics.predictions import dev_set
from skill_grafting.models.anatomy import HEAD, read_anatomy
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.runtime import seeded_torch
from skill_grafting.settings import Params
from skill_grafting.training.finetuning import plan_for, train_head
from stages.workflow.core import paths
from stages.workflow.core.stored import chosen_point


def predict_refitted(evaluation: Evaluation, variant: str, seed: int, params: Params) -> dict[str, Any]:
    """Predict a cell's own test and dev rows with the head trained on for `calibration.refit_head_steps`; gives the record of that.

    Nothing if these are 0.  Rows, optimizer, learning rate and batch size are those of fine-tuning at its chosen point, and what
    is drawn depends on task and seed alone, so that every model of a cell is treated equally.  The model's own head is restored.
    """
    if not (steps := params.calibration.refit_head_steps):
        return {}
    model = evaluation.model
    task = model.task.name
    chosen, words = chosen_point(task, seed), ("refit_head", task, seed)
    examples = model.encode(read_rows(paths.sample(task, seed, "train")))
    plan = plan_for(params.finetune, chosen["batch_size"], chosen["learning_rate"], steps)
    head = {name: model.parameters()[name].detach().clone() for name in read_anatomy(paths.PRETRAINED).names([HEAD])}
    with seeded_torch(*words):
        training = train_head(model, {*head}, examples, plan, words)
    evaluation.predict(variant, [task, dev_set(task)])
    model.put(head)
    return {"refit": {**chosen, "steps": steps, "rows": len(examples), "curve": training.curve}}
