"""Parameter-efficient training of one cell, seeded and trained as fine-tuning is."""

from collections.abc import Callable
from typing import Any

from stages.lib import paths
from stages.lib.evaluation.evaluation import Evaluation
from stages.lib.evaluation.study_cell import study_sets, variant_rows, write_reading
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.progress import progress
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.settings import Params
from stages.lib.training.finetuning import TrainingCell
from stages.lib.training.training import Hooks, TrainPlan, batches_of, train
from stages.study.peft_methods import attach, trained_parameters
from stages.study.settings import PeftTraining


def train_efficiently(
    cell: TrainingCell,
    name: str,
    settings: PeftTraining,
    graftable: int,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[LabelModel, dict[str, Any]]:
    """Train a method such as lora_8 on rows["train"], with AdamW; gives the trained model, live, and its record.

    The record has what was trained, how many parameters that are, the dev score and the loss curve; the share
    of parameters is of `graftable`.  Raises
    ModelError if the method can't be attached, TrainingError if the loss diverges.
    """
    method, _, size = name.rpartition("_")
    purpose = ("peft", method, int(size), cell.task.name, cell.seed)
    plan = {
        "steps": cell.steps(settings), "learning_rate": settings.learning_rate, "batch_size": settings.batch_size,
        "optimizer": "adamw", "schedule": "linear", "weight_decay": settings.weight_decay,
        "clip_norm": settings.clip_norm,
    }  # fmt: skip
    with seeded_torch(*purpose):
        model = cell.load(None)
        weights = attach(model, method, int(size))
        batches = batches_of(model, model.encode(cell.rows["train"]), settings.batch_size, numpy_generator(*purpose))
        training = train(batches, weights, TrainPlan(**plan), Hooks(on_step=on_step))
    accuracy, minus_loss = dev_score(model, model.encode(cell.rows["dev"]))
    record = {
        "method": method,
        "size": int(size),
        **trained_parameters(model, weights, graftable),
        "dev_accuracy": accuracy,
        "dev_loss": -minus_loss,
        "chosen": plan,
        "curve": training.curve,
    }
    return model, record


def train_and_measure(name: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store what a method such as lora_8 comes to on one cell; gives one line about it."""
    cell = TrainingCell.open(task, seed, params.model, machine)
    graftable = read_anatomy(paths.PRETRAINED).region(params.graft.region).size
    with progress(f"peft {name} {task}-{seed}", cell.steps(params.peft.training), "step") as bar:
        model, training = train_efficiently(cell, name, params.peft.training, graftable, bar.update)
    evaluation = Evaluation(model, study_sets(task, seed, params.study.test_max, with_train=True), variants=1)
    with evaluation.progress(f"peft {name} {task}-{seed}"):
        evaluation.predict(name)
    predictions = evaluation.predictions()
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    trained = {"trained": training["parameters"], "graftable": graftable}
    about = {"task": task, "seed": seed, **trained, "training": training}
    write_reading("peft", (name,), about, predictions, scores)
    return f"peft {name} {task}-{seed}: {evaluation.describe()}"
