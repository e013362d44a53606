"""Selections of layers as settings name them (`top_2`, `random_1`, `all`), and the layers that they stand for.

Loads neither torch nor NumPy, since settings are checked with it.
"""

import re
from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

from skill_grafting.support.errors import ParamsError

if TYPE_CHECKING:
    import numpy as np

# every layer; no layer, so that a new head alone is trained
UNSIZED = ("all", "none")
# with the highest or the lowest scores, drawn at random several times, a block at the start, in the middle or at the end
SIZED = ("top", "bottom", "random", "first", "middle", "last")
PATTERN = re.compile(rf"({'|'.join(UNSIZED)})|({'|'.join(SIZED)})_[1-9][0-9]{{0,2}}")
ALLOWED = "all, none, or top_K, bottom_K, random_K, first_K, middle_K, last_K with K layers, for instance top_2"


def parse(name: str) -> tuple[str, int | None]:
    """Kind and size of a selection, None where it has no size; raises ValueError that says what is allowed."""
    if not PATTERN.fullmatch(name):
        raise ValueError(ALLOWED)
    kind, _, size = name.partition("_")
    return kind, int(size) if size else None


Layers = tuple[int, ...]


def order(scores: Sequence[float]) -> list[int]:
    """Layers by score, highest first; of equal ones the earlier layer."""
    return sorted(range(len(scores)), key=lambda layer: (-scores[layer], layer))


def choose(selection: str, scores: Sequence[float], draws: int, generator: "np.random.Generator") -> list[Layers]:
    """The sets of layers, each rising, that a selection stands for: one, or for `random` one a draw.

    Draws differ from each other, so there are fewer of them where there are fewer sets of that size;
    with the same generator more draws begin with the same ones.  Raises ParamsError if the selection
    is larger than the model.
    """
    (kind, size), count, ranked = parse(selection), len(scores), order(scores)
    size = {"all": count, "none": 0}.get(kind, size)
    if size > count:
        raise ParamsError(f"surgery.selections: {selection} is more than the model's {count} layers")
    if kind == "random":
        return _drawn(size, count, draws, generator)
    start = {"middle": (count - size) // 2, "last": count - size}.get(kind, 0)
    chosen = {"top": ranked[:size], "bottom": ranked[count - size :]}
    return [tuple(sorted(chosen.get(kind, range(start, start + size))))]


def _drawn(size: int, count: int, draws: int, generator: "np.random.Generator") -> list[Layers]:
    sets: dict[Layers, None] = {}
    while len(sets) < min(draws, comb(count, size)):
        sets.setdefault(tuple(sorted(generator.choice(count, size, replace=False).tolist())))
    return [*sets]
