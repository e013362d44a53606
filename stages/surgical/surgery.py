"""surgery: fine-tuning of one selection of layers, for all tasks of one seed."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.support.fields import HEAD, LAYERS
from skill_grafting.support.io import read_json
from skill_grafting.support.progress import progress
from stages.surgical.layers import by_layer
from stages.surgical.selections import Layers, choose, parse
from stages.surgical.settings import Settings, SurgeryParams
from stages.text.models.evaluation import Evaluation
from stages.text.scores.predictions import Predictions
from stages.text.scores.scores import cross_entropy, own_scores
from stages.text.tasks.runtime import Runtime, numpy_generator
from stages.text.tasks.settings import WarmedUp
from stages.text.training.finetuning import Finetuned, TrainingCell, finetune, plan_for
from stages.workflow.cells.scoring import write_record
from stages.workflow.cells.stored import read_test_sets
from stages.workflow.cells.training import open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def operate(selection: str, task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Fine-tune and measure every set of layers that a selection stands for; returns a line for the log."""
    anatomy, training = read_anatomy(paths.PRETRAINED), params.surgery.training.over(params.finetune)
    cell = open_training(task, seed, params.model, machine)
    tests = {task: read_test_sets(task, seed)[task][: params.surgery.test_max or None]}
    title = f"surgery {selection} {task}-{seed}"
    sets = chosen_sets(selection, task, seed, params.surgery)
    names = ["_".join(["layers", *map(str, layers)]) if layers else "none" for layers in sets]
    records: list[dict[str, Any]] = []
    predictions: Predictions | None = None
    with progress(title, len(sets) * cell.steps(training), "step") as bar:
        for name, layers in zip(names, sets, strict=True):
            mask = mask_of(anatomy, layers, params.surgery.training.also)
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
    """The sets of layers of a selection for a cell, by its stored scores."""
    scores = read_scores(task, seed, surgery.score.target, surgery.score.aggregation, surgery.score.examples)
    return choose(selection, scores, surgery.draws, numpy_generator("random_layers", task, seed, parse(selection)[1]))


def read_scores(task: str, seed: int, target: str, aggregation: str, examples: int) -> list[float]:
    """The stored scores of a cell's layers, their mean over heads; those of all examples if there are fewer."""
    stored = read_json(paths.record("fim", task, seed))["rows"]
    rows = [row for row in stored if row["target"] == target and row["aggregation"] == aggregation]
    count = max(row["examples"] for row in rows if row["examples"] <= examples)
    values = [row["scores"] for row in rows if row["examples"] == count]
    return [sum(column) / len(column) for column in zip(*values, strict=True)]


def mask_of(anatomy: ModelSpec, layers: Layers, also: list[str]) -> GraftMask:
    """Whole layers, and the groups of parameters that are trained with any of them."""
    return whole_layers(anatomy.region([LAYERS, *also]), layers, anatomy.names(also))


def whole_layers(region: Region, layers: Sequence[int], besides: Sequence[str] = ()) -> GraftMask:
    """Everything in these layers, and in the tensors named `besides`."""
    tensors = by_layer(region)
    names = {*besides, *(name for layer in layers for name in tensors[layer])}
    return GraftMask(
        region, {name: torch.arange(prod(shape)) for name, shape in region.shapes.items() if name in names}
    )


def train_layers(
    cell: TrainingCell, training: WarmedUp, mask: GraftMask, on_step: Callable[[], object] = lambda: None
) -> Finetuned:
    """Fine-tune the mask's values and a new head; the pretrained model where there is neither."""
    if mask.selected or read_anatomy(cell.pretrained).names([HEAD]):
        return finetune(cell, training, on_step, mask)
    return Finetuned(cell.load(None), {"curve": []})


def trained_size(anatomy: ModelSpec, mask: GraftMask) -> int:
    """Number of trained parameters, a new head among them."""
    return mask.selected + (anatomy.region([HEAD]).size if anatomy.names([HEAD]) else 0)


def peak_learning_rate(training: WarmedUp, record: dict[str, Any]) -> float:
    """The highest learning rate that training got to, 0 where nothing was trained."""
    if not record["curve"]:
        return 0.0
    plan = plan_for(training, **record["chosen"])
    return plan.learning_rate * max(map(plan.factor, range(plan.steps)))


@stage
def main(params: Settings, machine: Runtime, selection: str, seed: int) -> None:
    """Train the selected layers from the pretrained model, and measure."""
    for task in params.surgery.tasks:
        print(operate(selection, task, seed, params, machine))
