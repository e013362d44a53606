"""Task addition and negation with the vectors of one method (stage arithmetic).

Addition: one alpha for the sum of all tasks' vectors, chosen on dev by the mean over tasks of the
accuracy / that of the method's own single-task model.  Negation: for each task by itself, the alpha
that takes most of its accuracy on dev while a control task keeps its share.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from stages.lib import paths
from stages.lib.io import write_json
from stages.lib.merging.arithmetic import alpha_grid, choose_alpha, mean_normalised, normalised
from stages.lib.merging.vectors import dared, elected, summed
from stages.lib.metrics.classification import accuracy
from stages.lib.metrics.predictions import Predictions, first_rows, read_predictions, write_predictions
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.talos.arithmetic_model import FULL, Edited, open_edited
from stages.talos.settings import Addition, Negation

SUM, TIES, DARE = "sum", "ties", "dare"
SINGLE, ADDED, NEGATED, CONTROL = "single", "added", "negated", "control"
Scores = dict[str, float]


def add_and_negate(method: str, seed: int, params: Any, machine: Runtime) -> list[str]:
    """Store both for all tasks of a seed; gives a line for each way of adding."""
    tasks, settings = params.talos.tasks, params.arithmetic
    mergers = mergers_of(method, settings.addition, seed)
    limits = {"dev": params.talos.dev_max, "test": params.talos.test_max}
    edited = open_edited(method, seed, params, machine, limits, tasks, mergers)
    recall(edited, method, seed)
    alphas = alpha_grid(settings.points)
    single = {task: single_scores(edited, task) for task in tasks}
    found: dict[str, Any] = {task: {} for task in tasks}
    points = len(alphas) * (len(mergers) + len(tasks))
    with progress(f"arithmetic {method} {seed}", points, "model") as bar:
        added = {name: addition(edited, name, alphas, single, bar.update) for name in mergers}
        for task in tasks:
            found[task] = negation(edited, task, alphas, settings.negation, bar.update)
    for task in tasks:
        write_task(method, seed, edited, task, single[task], added, found[task])
    return [f"arithmetic {method} {name} {seed}: {describe(part)}" for name, part in added.items()]


def recall(edited: Edited, method: str, seed: int) -> None:
    """Take over what the stage edit stored: test logits of the pretrained model and of each task's own one."""
    for task in edited.views:
        stored = read_predictions(paths.reading_logits("edit", (method,), task, seed)).logits[task]
        for name, coefficients in ((PRETRAINED, {}), (task, {task: 1.0})):
            edited.remember(coefficients, {(task, "test"): stored[name]})


def mergers_of(method: str, settings: Addition, seed: int) -> dict[str, Any]:
    """Ways to make one vector of all tasks'; TIES and DARE are for the vectors of full fine-tuning."""
    ways = {
        SUM: summed,
        TIES: partial(elected, share=settings.ties_share),
        DARE: partial(dared, share=settings.dare_share, seed=seed),
    }
    return {name: way for name, way in ways.items() if name == SUM or (method == FULL and name in settings.mergers)}


def single_scores(edited: Edited, task: str) -> dict[str, Any]:
    """The pretrained and the method's own model of a task: split -> accuracy, and the logits of the test rows."""
    found: dict[str, Any] = {"logits": {}}
    for name, coefficients in ((PRETRAINED, {}), (SINGLE, {task: 1.0})):
        logits = edited.logits(coefficients, [(task, "dev"), (task, "test")])
        found[name] = {split: accuracy(values, edited.labels((key, split))) for (key, split), values in logits.items()}
        found["logits"][name] = logits[task, "test"]
    return found


def addition(
    edited: Edited, name: str, alphas: list[float], single: Mapping[str, Any], on_point: Any = lambda: None
) -> dict[str, Any]:
    """alpha, the mean normalised accuracy on dev at every alpha, and the test logits of each task at the chosen one."""
    own = {task: values[SINGLE]["dev"] for task, values in single.items()}
    curve = {}
    for alpha in alphas:
        scores = accuracies(edited, {name: alpha}, ((task, "dev") for task in single))
        curve[alpha] = mean_normalised({task: scores[task, "dev"] for task in single}, own)
        on_point()
    alpha = choose_alpha(curve)
    logits = edited.logits({name: alpha}, [(task, "test") for task in single])
    return {"alpha": alpha, "curve": curve, "logits": {task: values for (task, _), values in logits.items()}}


def negation(
    edited: Edited, task: str, alphas: list[float], settings: Negation, on_point: Any = lambda: None
) -> dict[str, Any]:
    """alpha, both curves on dev, test logits of the target and the control there, and whether the control is weak."""
    control, target_dev, control_dev = settings.controls[task], {}, {}
    for alpha in alphas:
        scores = accuracies(edited, {task: -alpha}, [(task, "dev"), (control, "dev")])
        target_dev[alpha], control_dev[alpha] = scores[task, "dev"], scores[control, "dev"]
        on_point()
    alpha = choose_negation(target_dev, control_dev, settings.retention)
    logits = edited.logits({task: -alpha}, [(task, "test"), (control, "test")])
    before = edited.logits({}, [(control, "test")])[control, "test"]
    labels = edited.labels((control, "dev"))
    chance = float(np.bincount(labels).max() / len(labels))
    return {
        "alpha": alpha,
        "control": control,
        "target_curve": target_dev,
        "control_curve": control_dev,
        "weak_control": is_weak(control_dev[0.0], chance, settings.control_margin),
        "control_zero_shot": accuracy(before, edited.labels((control, "test"))),
        "control_accuracy": accuracy(logits[control, "test"], edited.labels((control, "test"))),
        "logits": logits[task, "test"],
    }


def accuracies(edited: Edited, coefficients: Mapping[str, float], keys: Iterable[Any]) -> dict[Any, float]:
    """(task, split) -> accuracy at one point."""
    return {key: accuracy(logits, edited.labels(key)) for key, logits in edited.logits(coefficients, keys).items()}


def write_task(
    method: str, seed: int, edited: Edited, task: str, single: Any, added: Mapping[str, Any], negated: dict[str, Any]
) -> None:
    """Store the test logits of a task, and the record of everything about it."""
    labels, most = edited.labels((task, "test")), len(edited.sets[task, "test"])
    whole = first_rows(read_predictions(paths.predictions("reference", task, seed)), most)
    full = accuracy(whole.logits[task][FINETUNED], whole.labels[task])
    logits = {**single["logits"], NEGATED: negated.pop("logits")}
    logits |= {f"{ADDED}_{name}": part["logits"][task] for name, part in added.items()}
    stored = Predictions(edited.views[task].task.labels, {task: labels}, {task: logits})
    write_predictions(paths.reading_logits("arithmetic", (method,), task, seed), stored)
    own = single[SINGLE]["test"]
    record = {
        "stage": "arithmetic", "method": method, "task": task, "seed": seed, "n": len(labels),
        "n_dev": len(edited.sets[task, "dev"]), "pretrained": single[PRETRAINED]["test"], "single": own, "full": full,
        "added": {name: {**points(part), **_shares(part, task, labels, own, full)} for name, part in added.items()},
        "negated": {**points(negated), "accuracy": accuracy(logits[NEGATED], labels)},
    }  # fmt: skip
    write_json(paths.reading_record("arithmetic", (method,), task, seed), record)


def points(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the record, its curves as lists of [alpha, value], since JSON has no numbers for keys."""
    plain = {name: value for name, value in part.items() if name != "logits"}
    return {
        name: [[*item] for item in value.items()] if isinstance(value, dict) else value for name, value in plain.items()
    }


def _shares(part: Mapping[str, Any], task: str, labels: np.ndarray, own: float, full: float) -> Scores:
    share = accuracy(part["logits"][task], labels)
    return {"accuracy": share, "by_own": normalised(share, own), "by_full": normalised(share, full)}


def describe(part: Mapping[str, Any]) -> str:
    """One line about an addition."""
    return f"alpha {part['alpha']}, normalised accuracy on dev {part['curve'][part['alpha']]:.3f}"


def choose_negation(target: Mapping[float, float], control: Mapping[float, float], retention: float) -> float:
    """The alpha with the lowest target score whose control score is at least retention * that at alpha 0.

    Both map alpha -> score on dev; of equal scores the smallest alpha is chosen, and alpha 0 is always
    allowed.  Raises ValueError unless both have the same alphas, 0 among them.
    """
    if target.keys() != control.keys() or 0 not in control:
        raise ValueError("target and control need the same alphas, 0 among them")
    floor = retention * control[0]
    allowed = [alpha for alpha in sorted(target) if alpha == 0 or control[alpha] >= floor]
    return min(allowed, key=target.__getitem__)  # min keeps the first of equals


def is_weak(zero_shot: float, chance: float, margin: float) -> bool:
    """Whether a control that starts at this score has nothing to lose: less than margin above chance."""
    return zero_shot < chance + margin
