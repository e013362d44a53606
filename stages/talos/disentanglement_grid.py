"""How far two tasks' vectors of one method disturb each other (stage disentangle)."""

from typing import Any

import numpy as np

from stages.lib import paths
from stages.lib.io import write_json
from stages.lib.runtime import Runtime
from stages.talos.arithmetic_model import open_edited
from stages.talos.disentanglement import error_grid, mean_within

# alpha is searched within 0..1 for addition and -1..0 for negation
SEARCHED = 1.0


def disentangle(method: str, seed: int, params: Any, machine: Runtime) -> list[str]:
    """Store the error grid of every pair of tasks; gives a line for each."""
    settings, lines = params.disentangle, []
    for first, second in settings.pairs.items():
        edited = open_edited(method, seed, params, machine, {"test": settings.rows}, [first, second])

        def logits(one: float, two: float, data: int, edited: Any = edited, pair: Any = (first, second)) -> np.ndarray:
            key = (pair[data], "test")
            return edited.logits({pair[0]: one, pair[1]: two}, [key])[key]

        rows = error_grid(logits, alphas(settings.reach, settings.points))
        pair = f"{first}+{second}"
        about = {"stage": "disentangle", "method": method, "pair": [first, second], "seed": seed}
        inside = mean_within(rows, SEARCHED)
        record = {**about, "n": [len(part) for part in edited.sets.values()], "within_search": inside, "rows": rows}
        write_json(paths.reading_record("disentangle", (method,), pair, seed), record)
        lines.append(f"disentangle {method} {pair} {seed}: mean error where alpha is searched {inside:.3f}")
    return lines


def alphas(reach: float, points: int) -> list[float]:
    """Evenly spaced alphas from -reach to reach."""
    return [round(float(alpha), 10) for alpha in np.linspace(-reach, reach, points)]
