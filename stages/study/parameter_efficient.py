"""Parameter-efficient training of one cell, seeded and trained as fine-tuning is."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.data.tasks import TaskSpec
from stages.lib.evaluation.evaluation import Evaluation
from stages.lib.evaluation.study_cell import study_sets, variant_rows, write_reading
from stages.lib.io import read_rows
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.progress import progress
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.training.finetuning import steps_for
from stages.lib.training.training import TrainPlan, train
from stages.study.peft_methods import attach, trained_parameters

PLANNED = ("steps", "learning_rate", "batch_size", "optimizer", "schedule", "weight_decay", "clip_norm")


def train_efficiently(
    pretrained: Path,
    task: TaskSpec,
    rows: dict[str, list[dict]],
    seed: int,
    model_settings: Any,
    settings: Any,
    runtime: Runtime,
    method: str,
    size: int,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[LabelModel, dict[str, Any]]:
    """Train a method of METHODS on rows["train"]; gives the trained model, live, and the record of it.

    settings: those of PLANNED, and `region`, the parameter groups whose size the share refers to.  The
    record has what was trained, how many parameters that are, the dev score and the loss curve.  Raises
    ModelError if the method can't be attached, TrainingError if the loss diverges.
    """
    purpose = ("peft", method, size, task.name, seed)
    graftable = read_anatomy(pretrained).region(settings.region).size
    plan = {name: getattr(settings, name) for name in PLANNED}
    with seeded_torch(*purpose):
        model = LabelModel.load(pretrained, task, model_settings, runtime)
        trained = attach(model, method, size)
        examples = model.encode(rows["train"])
        training = train(model, trained, examples, TrainPlan(**plan), numpy_generator(*purpose), on_step=on_step)
    accuracy, minus_loss = dev_score(model, model.encode(rows["dev"]))
    record = {
        "method": method,
        "size": size,
        **trained_parameters(model, trained, graftable),
        "dev_accuracy": accuracy,
        "dev_loss": -minus_loss,
        "chosen": plan,
        "curve": training.curve,
    }
    return model, record


def train_and_measure(name: str, task: str, seed: int, params: Any, machine: Runtime) -> str:
    """Store what a method such as lora_8 comes to on one cell; gives one line about it."""
    method, _, size = name.rpartition("_")
    spec = read_task(task)
    rows = {split: read_rows(paths.sample(task, seed, split)) for split in ("train", "dev")}
    settings = _settings(params, len(spec.labels), len(rows["train"]))
    with progress(f"peft {name} {task}-{seed}", settings.steps, "step") as bar:
        model, training = train_efficiently(
            paths.PRETRAINED, spec, rows, seed, params.model, settings, machine, method, int(size), bar.update
        )
    evaluation = Evaluation(model, study_sets(task, seed, params.study.test_max, with_train=True), variants=1)
    with evaluation.progress(f"peft {name} {task}-{seed}"):
        evaluation.predict(name)
    predictions = evaluation.predictions()
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    graftable = read_anatomy(paths.PRETRAINED).region(params.graft.region).size
    trained = {"trained": training["parameters"], "graftable": graftable}
    about = {"task": task, "seed": seed, **trained, "training": training}
    write_reading("peft", (name,), about, predictions, scores)
    return f"peft {name} {task}-{seed}: {evaluation.describe()}"


def _settings(params: Any, n_labels: int, n_examples: int) -> SimpleNamespace:
    """The plan of `train_efficiently` by the `peft` section; the paper's methods train with AdamW."""
    peft = params.peft.training
    return SimpleNamespace(
        steps=steps_for(peft, n_labels, n_examples),
        learning_rate=peft.learning_rate,
        batch_size=peft.batch_size,
        optimizer="adamw",
        schedule="linear",
        weight_decay=peft.weight_decay,
        clip_norm=peft.clip_norm,
        region=params.graft.region,
    )
