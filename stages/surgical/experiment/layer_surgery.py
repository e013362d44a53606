"""Surgical fine-tuning of one cell: some layers are trained, the others keep every bit."""

from collections.abc import Callable
from typing import Any

from skill_grafting.errors import ParamsError
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.metrics.predictions import Predictions
from skill_grafting.metrics.scores import cross_entropy, own_scores
from skill_grafting.models.anatomy import HEAD, LAYERS, ModelSpec, read_anatomy
from skill_grafting.models.evaluation import Evaluation
from skill_grafting.progress import progress
from skill_grafting.runtime import Runtime, numpy_generator
from skill_grafting.settings import Params
from skill_grafting.training.finetuning import Finetuned, TrainingCell, finetune, plan_for
from stages.surgical.experiment.fisher_scores import read_scores
from stages.surgical.experiment.layers import whole_layers
from stages.surgical.experiment.selections import Layers, choose, parse
from stages.surgical.settings import LayerTraining, SurgeryParams
from stages.workflow.core import paths
from stages.workflow.core.cells import open_training
from stages.workflow.core.evaluation.study_cell import write_record
from stages.workflow.core.stored import read_test_sets


def train_layers(
    cell: TrainingCell, training: LayerTraining, mask: GraftMask, on_step: Callable[[], object] = lambda: None
) -> Finetuned:
    """Fine-tune the mask's values and a new head; the pretrained model where there is neither."""
    if mask.selected or read_anatomy(cell.pretrained).names([HEAD]):
        return finetune(cell, training, on_step, mask)
    return Finetuned(cell.load(None), {"curve": []})


def operate(selection: str, task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Fine-tune and measure every set of layers that a selection stands for; returns a line for the log."""
    anatomy, training = read_anatomy(paths.PRETRAINED), params.surgery.training
    cell = open_training(task, seed, params.model, machine)
    tests = {task: read_test_sets(task, seed)[task][: params.surgery.test_max or None]}
    title = f"surgery {selection} {task}-{seed}"
    sets = chosen_sets(selection, task, seed, params.surgery)
    names = ["_".join(["layers", *map(str, layers)]) if layers else "none" for layers in sets]
    records: list[dict[str, Any]] = []
    predictions: Predictions | None = None
    with progress(title, len(sets) * cell.steps(training), "step") as bar:
        for name, layers in zip(names, sets, strict=True):
            mask = mask_of(anatomy, layers, training.also)
            done = train_layers(cell, training, mask, bar.update)
            evaluation = Evaluation(done.model, tests, variants=1)
            with evaluation.progress(name):
                evaluation.predict(name)
            now = evaluation.predictions()
            predictions = now if predictions is None else predictions | now
            facts = {"draw": len(records), "layers": [*layers], "trained": trained_size(anatomy, mask)}
            records.append({**facts, **done.record, "peak_learning_rate": peak_learning_rate(training, done.record)})
    scores = own_scores(predictions, task, cell.task)
    for name, row in zip(names, records, strict=True):
        row |= {**scores[name], "loss": cross_entropy(predictions.logits[task][name], predictions.labels[task])}
    header = {"task": task, "seed": seed, "selection": selection, "model_parameters": anatomy.parameters}
    write_record("surgery", (selection,), header, predictions, records)
    accuracies = ", ".join(f"{name} {values['accuracy']:.3f}" for name, values in scores.items())
    return f"{title}: {accuracies} (accuracy)"


def chosen_sets(selection: str, task: str, seed: int, surgery: SurgeryParams) -> list[Layers]:
    """The sets of layers of a selection for a cell, by its stored scores; raises ParamsError if it is too large."""
    scores = read_scores(task, seed, surgery.score.target, surgery.score.aggregation, surgery.score.examples)
    _, size = parse(selection)
    if (size or 0) > len(scores):
        raise ParamsError(f"surgery.selections: {selection} is more than the model's {len(scores)} layers")
    return choose(selection, scores, surgery.draws, numpy_generator("random_layers", task, seed, size))


def mask_of(anatomy: ModelSpec, layers: Layers, also: list[str]) -> GraftMask:
    """Whole layers, and the groups of parameters that are trained with any of them."""
    return whole_layers(anatomy.region([LAYERS, *also]), layers, anatomy.names(also))


def trained_size(anatomy: ModelSpec, mask: GraftMask) -> int:
    """Number of trained parameters, a new head among them."""
    return mask.selected + (anatomy.region([HEAD]).size if anatomy.names([HEAD]) else 0)


def peak_learning_rate(training: LayerTraining, record: dict[str, Any]) -> float:
    """The highest learning rate that training got to, 0 where nothing was trained."""
    if not record["curve"]:
        return 0.0
    plan = plan_for(training, **record["chosen"])
    return plan.learning_rate * max(map(plan.factor, range(plan.steps)))
