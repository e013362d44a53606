"""The numbers on continual learning for `dvc metrics`: nested dicts of n, mean and sd.

measure    method -> average, learned, forgetting, backward_transfer -> n, mean, sd (over orders and seeds)
order      order -> method -> task -> n, mean, sd of its accuracy after the last task (over seeds)
alone      order -> task -> the same of its own fine-tuned model
difference grafting-naive -> the same of the paired difference of their averages, and its 95 % interval
memory     method -> bytes kept after the last task, beside one model and heads
unchanged  method -> share of later tests with the same logits as right after a task's own step
"""

from typing import Any

from stages.continual.report.collecting import MEASURES, Sequences
from stages.continual.report.findings import average_difference
from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.stats import clean, mean_of


def summary(found: Sequences) -> dict[str, Any]:
    """All of it; empty where the stage is off."""
    parts = {
        "measure": {method: _measures(found, method) for method in found.methods},
        "order": {order: {method: _tasks(found, order, method) for method in found.methods} for order in found.orders},
        "alone": {order: _alone(found, order) for order in found.orders},
        "difference": _difference(found),
        "memory": {method: _memory(found, method) for method in found.methods},
        "unchanged": {method: _unchanged(found, method) for method in found.methods},
    }
    return clean({name: part for name, part in parts.items() if part})


def _measures(found: Sequences, method: str) -> dict[str, Any]:
    rows = found.measure[found.measure.method == method]
    return {name: mean_of(rows[name]).numbers() for name in MEASURES}


def _difference(found: Sequences) -> dict[str, Any]:
    value = average_difference(found)
    return {"grafting-naive": value.numbers()} if value.n else {}


def _tasks(found: Sequences, order: str, method: str) -> dict[str, Any]:
    rows = found.steps(order)
    rows = rows[(rows.method == method) & (rows.step == rows.length)]
    return {task: mean_of(rows[rows.task == task].accuracy).numbers() for task in found.orders[order]}


def _alone(found: Sequences, order: str) -> dict[str, Any]:
    rows = found.alone(FINETUNED, order)
    return {task: mean_of(rows[rows.task == task].accuracy).numbers() for task in found.orders[order]}


def _memory(found: Sequences, method: str) -> dict[str, Any]:
    rows = found.memory[found.memory.method == method]
    return mean_of(rows.loc[rows.groupby(["order", "seed"]).place.idxmax()]["skill"]).numbers()


def _unchanged(found: Sequences, method: str) -> float | None:
    rows = found.steps()
    later = rows[(rows.method == method) & (rows.step > rows.place)]
    return float(later.unchanged.astype(float).mean()) if len(later) else None
