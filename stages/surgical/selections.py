"""Selections of layers as settings name them: `top_2`, `random_1`, `all`; told apart without loading torch."""

import re
from dataclasses import dataclass

# what a selection is called without its size, and what it selects
KINDS = {
    "all": "every layer",
    "none": "no layer, so that a new head alone is trained",
    "top": "the highest scores",
    "bottom": "the lowest scores",
    "random": "drawn at random, several times",
    "first": "a block at the start",
    "middle": "a block in the middle",
    "last": "a block at the end",
}
UNSIZED = ("all", "none")
SIZED = [kind for kind in KINDS if kind not in UNSIZED]
PATTERN = re.compile(rf"({'|'.join(UNSIZED)})|({'|'.join(SIZED)})_[1-9][0-9]{{0,2}}")
ALLOWED = "all, none, or top_K, bottom_K, random_K, first_K, middle_K, last_K with K layers, for instance top_2"


@dataclass(frozen=True)
class Selection:
    """A kind of KINDS and how many layers; None where the kind says it."""

    kind: str
    size: int | None

    @classmethod
    def parse(cls, name: str) -> "Selection":
        """Take a name apart; raises ValueError that says what is allowed."""
        if not PATTERN.fullmatch(name):
            raise ValueError(ALLOWED)
        kind, _, size = name.partition("_")
        return cls(kind, int(size) if size else None)
