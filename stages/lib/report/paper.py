"""The paper's own values, to stand beside ours (paper.yaml)."""

from functools import cache
from pathlib import Path
from typing import Any

from stages.lib.errors import DataError
from stages.lib.yaml12 import load_yaml

VALUES = Path(__file__).with_name("paper.yaml")
USUAL_SHOTS = 64

Spread = tuple[float, float]


@cache
def _values() -> dict[str, Any]:
    return load_yaml(VALUES, DataError)


def shots_for(k: int) -> int:
    """The k of Table 2 to compare with: our own if the paper has it, else 64."""
    return k if k in _values()["table2"] else USUAL_SHOTS


def table2(task: str, shots: int) -> dict[str, dict[str, Spread]]:
    """Variant -> score, ece, agreement as (mean, deviation) in fractions; empty if the paper hasn't the task."""
    variants = _values()["table2"][shots].get(task, {})
    return {
        variant: {name: _fractions(pair) for name, pair in measures.items()} for variant, measures in variants.items()
    }


def table3(task: str, test_set: str) -> Spread | None:
    """Accuracy of the paper's graft on another test set, as (mean, deviation) in fractions."""
    pair = _values()["table3"].get(task, {}).get(test_set)
    return pair and _fractions(pair)


def _fractions(pair: list[float]) -> Spread:
    mean, deviation = pair
    return mean / 100, deviation / 100
