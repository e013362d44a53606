"""disentangle: how far two tasks' vectors of one method disturb each other, for one seed.

xi(a1, a2) compares, for each task t, what the model with both vectors predicts on the data of t with
what the model with the vector of t alone predicts (Ortiz-Jimenez et al., 2023).  Labels play no part.
The paper's definition adds the two tasks' errors; here they are kept apart, and their mean, within
0..1, is what figures show.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from skill_grafting.support.io import write_json
from stages.talos.arithmetic_model import ArithmeticModel, open_model
from stages.talos.settings import Settings
from stages.text.scores.scores import agreement
from stages.text.tasks.runtime import Runtime
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

# (alpha of the first vector, of the second, data of task 0 or 1) -> logits (n, labels)
Logits = Callable[[float, float, int], np.ndarray]


def error_grid(logits: Logits, alphas: Sequence[float]) -> list[dict[str, Any]]:
    """Rows alpha1, alpha2, e1, e2, mean, for every pair of alphas.

    `logits` is asked once for every point, and for the axes, where one vector is alone.
    """
    first = {alpha: logits(alpha, 0.0, 0) for alpha in alphas}
    second = {alpha: logits(0.0, alpha, 1) for alpha in alphas}
    rows = []
    for one, two in product(alphas, alphas):
        e1, e2 = (1 - agreement(alone, logits(one, two, task)) for task, alone in enumerate((first[one], second[two])))
        rows.append({"alpha1": one, "alpha2": two, "e1": e1, "e2": e2, "mean": (e1 + e2) / 2})
    return rows


def searched_mean(rows: Sequence[dict[str, Any]]) -> float:
    """Mean error at the points where alpha is searched: within 0..1 for addition and -1..0 for negation."""
    return float(np.mean([row["mean"] for row in rows if max(abs(row["alpha1"]), abs(row["alpha2"])) <= 1]))


def disentangle(method: str, seed: int, params: Settings, machine: Runtime) -> list[str]:
    """Store the error grid of every pair of tasks; gives a line for each."""
    settings, lines = params.disentangle.grid, []
    for first, second in settings.pairs.items():
        model = open_model(method, [first, second], seed, params, machine, {"test": settings.rows})
        places = np.linspace(-settings.reach, settings.reach, settings.points)
        rows = error_grid(pair_logits(model, first, second), [round(float(alpha), 10) for alpha in places])
        pair, inside = f"{first}+{second}", searched_mean(rows)
        record = {
            "stage": "disentangle", "method": method, "pair": [first, second], "seed": seed,
            "n": [len(part) for part in model.sets.values()], "within_search": inside, "rows": rows,
        }  # fmt: skip
        write_json(paths.record("disentangle", pair, seed, method), record)
        lines.append(f"disentangle {method} {pair} {seed}: mean error where alpha is searched {inside:.3f}")
    return lines


def pair_logits(model: ArithmeticModel, first: str, second: str) -> Logits:
    """Logits of the test rows of two tasks by the coefficients of their vectors."""

    def logits(one: float, two: float, data: int) -> np.ndarray:
        key = ((first, second)[data], "test")
        return model.logits({first: one, second: two}, [key])[key]

    return logits


@stage
def main(params: Settings, machine: Runtime, method: str, seed: int) -> None:
    """Lay the vectors of each pair over each other, at every point of a grid of coefficients."""
    print("\n".join(disentangle(method, seed, params, machine)))
