"""sensitivity: how much the pretrained model needs its least sensitive parameters, for all tasks of one seed."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skill_grafting.grafting.apply import transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region, Tensors
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers.baselines import Random
from skill_grafting.localizers.localizer import Budget, LocalizerInput
from skill_grafting.localizers.talos import calibrate, least_sensitive, sensitivity
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.io import read_rows, write_json
from skill_grafting.support.progress import progress
from stages.talos.arithmetic_model import ArithmeticModel, encode_rows
from stages.talos.settings import Settings
from stages.text.models.objective import draws, objective_of
from stages.text.scores.classification import accuracy
from stages.text.scores.overlap import overlap
from stages.text.scores.predictions import Predictions, write_predictions
from stages.text.scores.scores import majority_share
from stages.text.scores.variants import PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.training import open_shared
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

LEAST, MOST, RANDOM = "least", "most", "random"


def measure_sensitivity(seed: int, params: Settings, machine: Runtime) -> list[str]:
    """Store, for every task that sensitivity is measured on, pruned accuracies and overlaps; returns a line for each."""
    tasks = params.talos.tasks
    region = read_anatomy(paths.PRETRAINED).region(params.graft.region, "graft.region")
    pretrained = read_tensors(paths.PRETRAINED, region.shapes)
    views = open_shared(tasks, seed, params.model, machine).views
    model = ArithmeticModel(views, pretrained, {}, encode_rows(views, seed, {"test": params.talos.test_max}))
    start = model.logits({}, model.sets)
    logits: dict[str, dict[str, Any]] = {key[0]: {PRETRAINED: start[key]} for key in model.sets}
    overlaps: dict[str, dict[str, float]] = {}
    with progress(f"sensitivity {seed}", len(tasks), "task") as bar:
        for task in tasks:
            given = input_of(model, region, task, seed)
            for kind, mask in masks(given, params).items():
                model.put(zeroed(pretrained, mask))
                for key in model.sets:
                    logits[key[0]][f"{kind}_{task}"] = model.current(key)
            overlaps[task] = single_round(given, params, task, seed)
            bar.update()
    lines = []
    for task in tasks:
        write_task(model, task, seed, logits[task], overlaps[task], params)
        lines.append(f"sensitivity {task}-{seed}: IoU with a single round {overlaps[task]['iou']:.3f}")
    return lines


def input_of(model: ArithmeticModel, region: Region, task: str, seed: int) -> LocalizerInput:
    """Evidence about the pretrained backbone under the head of a task; there is no fine-tuned one to look at."""
    view, rows, words = model.views[task], read_rows(paths.sample(task, seed, "train")), ("sensitivity", task, seed)
    pretrained = {name: values.to(view.runtime.device) for name, values in model.pretrained.items()}
    objective = objective_of(view, region.shapes, rows, words=words)
    return objective.between(region, pretrained, pretrained, draws(*words))


def masks(given: LocalizerInput, params: Settings) -> dict[str, GraftMask]:
    """The share of parameters that is pruned: least and most sensitive in a single round, and a random one."""
    region = given.region
    k = region.budget(params.sensitivity.pruned)
    given.put(given.pretrained)
    scores = sensitivity(given, params.localizer.talos)
    return {
        LEAST: least_sensitive(scores, GraftMask.full(region), k),
        RANDOM: Random().find(lambda: given, [Budget(k)])[0],
        MOST: top_k(region, scores, k),
    }


def zeroed(pretrained: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The pretrained region with 0 at every parameter that the mask selects."""
    return transplant(pretrained, {name: torch.zeros(len(at)) for name, at in mask.indices.items()}, mask)


def single_round(given: LocalizerInput, params: Settings, task: str, seed: int) -> dict[str, float]:
    """Overlap of the talos mask with the one that a single round finds, and of two random ones of that size."""
    budget = Budget.of(given.region, params.talos.sparsity, "talos.sparsity")

    def calibrated(**changes: int) -> GraftMask:
        """Both draw the same labels."""
        drawing = replace(given, generator=draws("talos", task, seed))
        *_, mask = calibrate(drawing, params.localizer.talos.model_copy(update=changes), budget)
        return mask

    return overlap(calibrated(), calibrated(rounds=1))


def write_task(
    model: ArithmeticModel,
    task: str,
    seed: int,
    logits: dict[str, np.ndarray],
    overlap: dict[str, float],
    params: Settings,
) -> None:
    """Store the predictions of pruned models on a task's test rows, and the overlap of its masks."""
    labels = model.labels((task, "test"))
    stored = Predictions(model.views[task].task.labels, {task: labels}, {task: logits})
    write_predictions(paths.logits("sensitivity", task, seed), stored)
    shared = {"n": len(labels), "majority": majority_share(labels)}
    rows = [{"variant": name, **shared, "accuracy": accuracy(part, labels)} for name, part in logits.items()]
    record = {"stage": "sensitivity", "task": task, "seed": seed, "pruned": params.sensitivity.pruned}
    write_json(paths.record("sensitivity", task, seed), {**record, "rows": rows, "single_round": overlap})


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Prune the least, the most and random ones; calibrate a mask in rounds and in a single one, and measure how much they overlap."""
    if not params.talos.tasks:
        return
    print("\n".join(measure_sensitivity(seed, params, machine)))
