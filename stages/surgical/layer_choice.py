"""Which layers are trained: by their score, by their place, or by chance."""

from collections.abc import Sequence
from math import comb

import numpy as np

from stages.surgical.selections import Selection

Layers = tuple[int, ...]


def order(scores: Sequence[float]) -> list[int]:
    """Layers by score, highest first; of equal ones the earlier layer."""
    return sorted(range(len(scores)), key=lambda layer: (-scores[layer], layer))


def choose(selection: Selection, scores: Sequence[float], draws: int, generator: np.random.Generator) -> list[Layers]:
    """The sets of layers, each rising, that a selection stands for: one, or for `random` one a draw.

    Draws differ from each other, so there are fewer of them where there are fewer sets of that size;
    with the same generator more draws begin with the same ones.  Raises ValueError if the selection
    is larger than the model.
    """
    count = len(scores)
    size = {"all": count, "none": 0}.get(selection.kind, selection.size)
    if size > count:
        raise ValueError(f"{size} of {count} layers can't be selected")
    if selection.kind == "random":
        return _drawn(size, count, draws, generator)
    ranked = order(scores)
    start = {"middle": (count - size) // 2, "last": count - size}.get(selection.kind, 0)
    chosen = {"top": ranked[:size], "bottom": ranked[count - size :]}
    return [tuple(sorted(chosen.get(selection.kind, range(start, start + size))))]


def _drawn(size: int, count: int, draws: int, generator: np.random.Generator) -> list[Layers]:
    found: dict[Layers, None] = {}
    while len(found) < min(draws, comb(count, size)):
        found.setdefault(tuple(sorted(generator.choice(count, size, replace=False).tolist())))
    return [*found]
