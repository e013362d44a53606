"""Pruning of the pretrained model by sensitivity, and the stability of its masks (stage sensitivity)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stages.lib import paths
from stages.lib.graft.apply import transplant
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Tensors
from stages.lib.graft.select import top_k
from stages.lib.io import read_rows, write_json
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.random import rank_at_random
from stages.lib.localizers.registry import Budget
from stages.lib.localizers.settings import NoSettings, Talos
from stages.lib.localizers.talos import calibrate, least_sensitive, sensitivity
from stages.lib.metrics.classification import accuracy, majority_share
from stages.lib.metrics.overlap import chance_iou, iou
from stages.lib.metrics.predictions import Predictions, write_predictions
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.evidence import draws, evidence_about
from stages.lib.models.loading import read_tensors
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.settings import Params
from stages.talos.arithmetic_model import ArithmeticModel, encode_rows, open_views

LEAST, MOST, RANDOM = "least", "most", "random"
# other ways to calibrate the same mask: their changes to its section
VARIANTS: dict[str, dict[str, Any]] = {
    "other_draw": {},
    "single_round": {"rounds": 1},
    "no_attenuation": {"attenuation": 1.0},
    "all_labels": {"mode": "expected"},
    "true_label": {"mode": "empirical"},
    "raw_logit": {"mode": "sampled_logit"},
    "saliency": {"score": "fisher_times_theta2"},
}


def measure_sensitivity(seed: int, params: Params, machine: Runtime) -> list[str]:
    """Store, for every task that sensitivity is measured on, pruned accuracies and overlaps; gives a line for each."""
    tasks = params.talos.tasks
    anatomy = read_anatomy(paths.PRETRAINED)
    region = anatomy.region(params.graft.region)
    pretrained = read_tensors(paths.PRETRAINED, region.shapes)
    views = open_views(tasks, seed, params.model, machine)
    model = ArithmeticModel(views, pretrained, {}, encode_rows(views, seed, {"test": params.talos.test_max}))
    keys = [(task, "test") for task in tasks]
    logits: dict[str, dict[str, Any]] = {
        task: {PRETRAINED: model.logits({}, [key])[key]} for task, key in zip(tasks, keys, strict=True)
    }
    overlaps = {}
    with progress(f"sensitivity {seed}", len(tasks), "task") as bar:
        for task in tasks:
            evidence = evidence_of(model, task, seed, params)
            for kind, mask in masks(evidence, params).items():
                model.put(prune(pretrained, mask))
                for key in keys:
                    logits[key[0]][f"{kind}_{task}"] = model.current(key)
            overlaps[task] = compare(evidence, params, task, seed)
            bar.update()
    for key in keys:
        write_task(model, key[0], seed, logits[key[0]], overlaps[key[0]], params)
    return [f"sensitivity {task}-{seed}: {describe(overlaps[task])}" for task in tasks]


def evidence_of(model: ArithmeticModel, task: str, seed: int, params: Params) -> Evidence:
    """Evidence about the pretrained backbone under the head of a task; there is no fine-tuned one to look at."""
    view = model.views[task]
    region = read_anatomy(paths.PRETRAINED).region(params.graft.region)
    pretrained = {name: values.to(view.runtime.device) for name, values in model.pretrained.items()}
    rows = read_rows(paths.sample(task, seed, "train"))
    return evidence_about(view, region, pretrained, pretrained, rows, ("sensitivity", task, seed))


def masks(evidence: Evidence, params: Params) -> dict[str, GraftMask]:
    """The share of parameters that is pruned: least and most sensitive in a single round, and a random one."""
    region = evidence.region
    k = region.budget(params.sensitivity.pruned)
    evidence.put(evidence.pretrained)
    scores = sensitivity(evidence, params.localizer.talos)
    return {
        LEAST: least_sensitive(scores, GraftMask.full(region), k),
        RANDOM: GraftMask.from_region_indices(region, rank_at_random(evidence, NoSettings(), k)),
        MOST: top_k(region, scores, k),
    }


def prune(pretrained: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The pretrained region with 0 at every parameter that the mask selects."""
    return transplant(pretrained, {name: torch.zeros(len(at)) for name, at in mask.indices.items()}, mask)


def compare(evidence: Evidence, params: Params, task: str, seed: int) -> list[dict[str, Any]]:
    """Overlap of the talos mask with those of other ways to calibrate it."""
    region, rows = evidence.region, []
    budget = Budget.of(region, params.talos.sparsity, "top_k", "talos.sparsity")
    names = params.sensitivity.variants
    usual = calibrated(evidence, params.localizer.talos, {}, budget, (task, seed)) if names else None
    for name in names:
        words = (name, task, seed) if name == "other_draw" else (task, seed)
        other = calibrated(evidence, params.localizer.talos, VARIANTS[name], budget, words)
        rows.append({"variant": name, "iou": iou(usual, other), "chance": chance_iou(budget.k, budget.k, region.size)})
    return rows


def calibrated(
    evidence: Evidence, settings: Talos, changes: dict[str, Any], budget: Budget, words: tuple[object, ...]
) -> Any:
    """Region indices of a talos mask, labels drawn by these words."""
    drawing = replace(evidence, generator=draws("talos", *words))
    *_, mask = calibrate(drawing, settings.model_copy(update=changes), budget)
    return mask.region_indices().numpy()


def write_task(
    model: ArithmeticModel, task: str, seed: int, logits: Any, overlaps: list[dict[str, Any]], params: Params
) -> None:
    """Store the predictions of pruned models on a task's test rows, and the overlaps of its masks."""
    labels = model.labels((task, "test"))
    stored = Predictions(model.views[task].task.labels, {task: labels}, {task: logits})
    write_predictions(paths.reading_logits("sensitivity", (), task, seed), stored)
    shared = {"n": len(labels), "majority": majority_share(labels)}
    rows = [{"variant": name, **shared, "accuracy": accuracy(part, labels)} for name, part in logits.items()]
    record = {"stage": "sensitivity", "task": task, "seed": seed, "pruned": params.sensitivity.pruned}
    write_json(paths.reading_record("sensitivity", (), task, seed), {**record, "rows": rows, "overlaps": overlaps})


def describe(overlaps: list[dict[str, Any]]) -> str:
    """One line about the overlaps."""
    return ", ".join(f"{row['variant']} {row['iou']:.3f}" for row in overlaps) or "no variants"
