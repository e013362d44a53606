"""Weight disentanglement: do two task vectors, added together, leave each other's predictions alone?

xi(a1, a2) compares, for each task t, what the model with both vectors predicts on the data of t with
what the model with the vector of t alone predicts (Ortiz-Jimenez et al., 2023).  Labels play no part.
The paper's definition adds the two tasks' errors; here they are kept apart, and their mean, within
0..1, is what figures show.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from stages.lib.metrics.classification import agreement

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
        e1, e2 = (disagreement(alone, logits(one, two, task)) for task, alone in enumerate((first[one], second[two])))
        rows.append({"alpha1": one, "alpha2": two, "e1": e1, "e2": e2, "mean": (e1 + e2) / 2})
    return rows


def disagreement(first: np.ndarray, second: np.ndarray) -> float:
    """Share of rows on which two models predict different labels."""
    return 1 - agreement(first, second)


def mean_within(rows: Sequence[dict[str, Any]], reach: float) -> float:
    """Mean of the errors at the points with |alpha1| and |alpha2| of at most `reach`, where alpha is searched."""
    inside = [row["mean"] for row in rows if max(abs(row["alpha1"]), abs(row["alpha2"])) <= reach]
    return float(np.mean(inside))
