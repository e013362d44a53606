"""arithmetic: task addition and negation with the vectors of one method, for all tasks of one seed.

Addition: one alpha for the sum of all tasks' vectors, chosen on dev by the mean over tasks of the
accuracy / that of the method's own single-task model.  Negation: for each task by itself, the alpha
that takes most of its accuracy on dev while a control task keeps its share.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from skill_grafting.merging.arithmetic import alpha_grid, choose_alpha, mean_normalised, normalised
from skill_grafting.merging.ways import DARE, TIES, merged_vector, summed
from skill_grafting.support.io import write_json
from skill_grafting.support.progress import progress
from stages.talos.arithmetic_model import FULL, ArithmeticModel, Key, Merger, open_model
from stages.talos.settings import Addition, Negation, Settings
from stages.text.scores.classification import accuracy
from stages.text.scores.predictions import Predictions, first_rows, read_predictions, write_predictions
from stages.text.scores.scores import majority_share
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

SUM = "sum"
SINGLE, ADDED, NEGATED = "single", "added", "negated"
# a control that starts less than this above chance
WEAK = 0.05


def add_and_negate(method: str, seed: int, params: Settings, machine: Runtime) -> list[str]:
    """Store both for all tasks of a seed; gives a line for each way of adding."""
    tasks, settings = params.talos.tasks, params.arithmetic
    limits = {"dev": params.talos.dev_max, "test": params.talos.test_max}
    model = open_model(method, tasks, seed, params, machine, limits)
    model.mergers = mergers_of(method, settings.addition, seed)
    alphas = alpha_grid(settings.points)
    single = {task: single_scores(model, task) for task in tasks}
    points = len(alphas) * (len(model.mergers) + len(tasks))
    with progress(f"arithmetic {method} {seed}", points, "model") as bar:
        added = {name: addition(model, name, alphas, single, bar.update) for name in model.mergers}
        negated = {task: negation(model, task, alphas, settings.negation, bar.update) for task in tasks}
    for task in tasks:
        write_task((method, seed), model, task, {SINGLE: single[task], ADDED: added, NEGATED: negated[task]})
    return [
        f"arithmetic {method} {name} {seed}: alpha {part['alpha']}, normalised accuracy on dev "
        f"{part['curve'][part['alpha']]:.3f}"
        for name, part in added.items()
    ]


def mergers_of(method: str, settings: Addition, seed: int) -> dict[str, Merger]:
    """Ways to make one vector of all tasks'; TIES and DARE are for the vectors of `full`, the main pipeline's models."""
    shares = {TIES: settings.ties_share, DARE: settings.dare_share}
    chosen = {name: share for name, share in shares.items() if method == FULL and name in settings.mergers}
    return {SUM: summed} | {
        name: partial(merged_vector, name, share=share, seed=seed) for name, share in chosen.items()
    }


def single_scores(model: ArithmeticModel, task: str) -> dict[str, Any]:
    """The pretrained and the method's own model of a task: split -> accuracy, and the logits of the test rows."""
    scores: dict[str, Any] = {"logits": {}}
    for name, coefficients in ((PRETRAINED, {}), (SINGLE, {task: 1.0})):
        logits = model.logits(coefficients, [(task, "dev"), (task, "test")])
        scores[name] = {split: accuracy(values, model.labels((task, split))) for (_, split), values in logits.items()}
        scores["logits"][name] = logits[task, "test"]
    return scores


def addition(
    model: ArithmeticModel,
    name: str,
    alphas: list[float],
    single: Mapping[str, Any],
    on_point: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """alpha, the mean normalised accuracy on dev at every alpha, and the test logits of each task at the chosen one."""
    singles = {task: values[SINGLE]["dev"] for task, values in single.items()}
    curve = {}
    for alpha in alphas:
        scores = accuracies(model, {name: alpha}, ((task, "dev") for task in single))
        curve[alpha] = mean_normalised({task: scores[task, "dev"] for task in single}, singles)
        on_point()
    alpha = choose_alpha(curve)
    logits = model.logits({name: alpha}, [(task, "test") for task in single])
    return {"alpha": alpha, "curve": curve, "logits": {task: values for (task, _), values in logits.items()}}


def negation(
    model: ArithmeticModel,
    task: str,
    alphas: list[float],
    settings: Negation,
    on_point: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """alpha, both curves on dev, test logits of the target and the control there, and whether the control is weak.

    A weak control has nothing to lose: it starts at about chance.
    """
    control = settings.controls.get(task) or next(other for other in model.views if other != task)
    target_dev, control_dev = {}, {}
    for alpha in alphas:
        scores = accuracies(model, {task: -alpha}, [(task, "dev"), (control, "dev")])
        target_dev[alpha], control_dev[alpha] = scores[task, "dev"], scores[control, "dev"]
        on_point()
    alpha, test = choose_negation(target_dev, control_dev, settings.retention), (control, "test")
    logits = model.logits({task: -alpha}, [(task, "test"), test])
    return {
        "alpha": alpha,
        "control": control,
        "target_curve": target_dev,
        "control_curve": control_dev,
        "weak_control": control_dev[0.0] < majority_share(model.labels((control, "dev"))) + WEAK,
        "control_zero_shot": accuracies(model, {}, [test])[test],
        "control_majority": majority_share(model.labels(test)),
        "control_accuracy": accuracy(logits[test], model.labels(test)),
        "logits": logits[task, "test"],
    }


def accuracies(model: ArithmeticModel, coefficients: Mapping[str, float], keys: Iterable[Key]) -> dict[Key, float]:
    """(task, split) -> accuracy at one point."""
    return {key: accuracy(logits, model.labels(key)) for key, logits in model.logits(coefficients, keys).items()}


def write_task(cell: tuple[str, int], model: ArithmeticModel, task: str, results: Mapping[str, Any]) -> None:
    """Store the test logits of a task, and the record of all its results; `cell` is (method, seed)."""
    (method, seed), single, added, negated = cell, results[SINGLE], results[ADDED], results[NEGATED]
    labels = model.labels((task, "test"))
    whole = first_rows(read_predictions(paths.logits("reference", task, seed)), len(labels))
    alone, full = single[SINGLE]["test"], accuracy(whole.logits[task][FINETUNED], whole.labels[task])
    logits = {**single["logits"], NEGATED: negated["logits"]}
    logits |= {f"{ADDED}_{name}": part["logits"][task] for name, part in added.items()}
    stored = Predictions(model.views[task].task.labels, {task: labels}, {task: logits})
    write_predictions(paths.logits("arithmetic", task, seed, method), stored)
    sums = {name: accuracy(part["logits"][task], labels) for name, part in added.items()}
    record = {
        "stage": "arithmetic", "method": method, "task": task, "seed": seed, "n": len(labels),
        "n_dev": len(model.sets[task, "dev"]), "majority": majority_share(labels), "pretrained": single[PRETRAINED]["test"],
        "single": alone, "full": full,
        "added": {
            name: {
                **plain(part), "accuracy": sums[name],
                "by_own": normalised(sums[name], alone), "by_full": normalised(sums[name], full),
            }
            for name, part in added.items()
        },
        "negated": {**plain(negated), "accuracy": accuracy(logits[NEGATED], labels)},
    }  # fmt: skip
    write_json(paths.record("arithmetic", task, seed, method), record)


def plain(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the record, its curves as lists of [alpha, value], since JSON has no numbers for keys."""
    return {
        name: [[*item] for item in value.items()] if isinstance(value, dict) else value
        for name, value in part.items()
        if name != "logits"
    }


def choose_negation(target: Mapping[float, float], control: Mapping[float, float], retention: float) -> float:
    """The alpha with the lowest target score whose control score is at least retention * that at alpha 0.

    Both map the same alphas, 0 among them, to scores on dev; of equal scores the smallest alpha is chosen, and alpha 0 is
    always allowed.
    """
    floor = retention * control[0]
    allowed = [alpha for alpha in sorted(target) if alpha == 0 or control[alpha] >= floor]
    return min(allowed, key=target.__getitem__)  # min keeps the first of equals


@stage
def main(params: Settings, machine: Runtime, method: str, seed: int) -> None:
    """Choose alpha on dev, and measure on test."""
    if not params.talos.tasks:
        return
    print("\n".join(add_and_negate(method, seed, params, machine)))
