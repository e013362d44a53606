"""Parameter-efficient training of one cell, seeded and trained as fine-tuning is."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.models.label_model import LabelModel
from skill_grafting.models.predicting import dev_score
from skill_grafting.progress import progress
from skill_grafting.runtime import Runtime, numpy_generator, seeded_torch
from skill_grafting.settings import Params
from skill_grafting.training.finetuning import TrainingCell
from skill_grafting.training.grid import Point, Trained, search
from skill_grafting.training.training import Hooks, TrainPlan, batches_of, train
from stages.study.peft_methods import attach, trained_parameters
from stages.study.settings import PeftTraining
from stages.workflow.core import paths
from stages.workflow.core.cells import open_training
from stages.workflow.core.evaluation.study_cell import study_sets, variant_rows, write_record
from stages.workflow.core.stored import chosen_point


def train_efficiently(
    cell: TrainingCell, name: str, plans: list[TrainPlan], on_step: Callable[[], object] = lambda: None
) -> tuple[LabelModel, dict[str, Tensor], dict[str, Any]]:
    """Train a method such as lora_8 on rows["train"] by the plan that is best on dev.

    Gives the model with what was inserted, live, the parameters that were trained, and the record.  Every plan starts
    from the same random numbers.  Raises ModelError if the method can't be attached, TrainingError if every loss diverges.
    """
    method, _, size = name.rpartition("_")
    purpose = ("peft", method, int(size), cell.task.name, cell.seed)

    def trained(point: Point) -> Trained[tuple[LabelModel, dict[str, Tensor], list[dict[str, float]]]]:
        plan = TrainPlan(**point)
        with seeded_torch(*purpose):
            model = cell.load(None)
            weights = attach(model, method, int(size))
            examples = model.encode(cell.rows["train"])
            batches = batches_of(model, examples, plan.batch_size, numpy_generator(*purpose))
            curve = train(batches, weights, plan, Hooks(on_step=on_step, resumes=True)).curve
        return Trained((model, weights, curve), dev_score(model, model.encode(cell.rows["dev"])))

    best = search(map(asdict, plans), trained)
    model, weights, curve = best.kept
    record = {"dev_accuracy": best.accuracy, "chosen": best.point, "grid": best.grid, "curve": curve}
    return model, weights, {"method": method, "size": int(size), **record}


def plans_of(settings: PeftTraining, chosen: Point) -> list[TrainPlan]:
    """A plan for each learning rate, of the steps and the batch size that fine-tuning chose."""
    same = {"steps": chosen["steps"], "batch_size": chosen["batch_size"], "optimizer": "adamw", "schedule": "linear"}
    same |= settings.model_dump(exclude={"learning_rates"})
    return [TrainPlan(learning_rate=rate, **same) for rate in settings.learning_rates]


def train_and_measure(name: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Train a method such as lora_8 on one cell and store its scores; returns a line for the log."""
    cell = open_training(task, seed, params.model, machine)
    graftable = read_anatomy(paths.PRETRAINED).region(params.graft.region).size
    plans = plans_of(params.peft.training, chosen_point(task, seed))
    with progress(f"peft {name} {task}-{seed}", sum(plan.steps for plan in plans), "step") as bar:
        model, weights, training = train_efficiently(cell, name, plans, bar.update)
    training |= trained_parameters(model, weights, graftable)
    evaluation = Evaluation(model, study_sets(task, seed, params.study.test_max, with_train=True), variants=1)
    with evaluation.progress(f"peft {name} {task}-{seed}"):
        evaluation.predict(name)
    predictions = evaluation.predictions()
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    sizes = {"trained": training["parameters"], "graftable": graftable}
    about = {"task": task, "seed": seed, **sizes, "training": training}
    write_record("peft", (name,), about, predictions, scores)
    return f"peft {name} {task}-{seed}: {evaluation.describe()}"
