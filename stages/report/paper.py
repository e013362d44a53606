"""The paper's own values, to stand beside ours, as fractions (stages/paper.yaml)."""

from functools import cache
from pathlib import Path
from typing import Any

from stages.lib.report.load import published

USUAL_SHOTS = 64

Spread = tuple[float, float]


@cache
def _values() -> dict[str, Any]:
    return published(Path(__file__).parents[1] / "paper.yaml")


def shots_for(k: int) -> int:
    """The k of Table 2 to compare with: our own if the paper has it, else 64."""
    return k if k in _values()["table2"] else USUAL_SHOTS


def table2(task: str, shots: int) -> dict[str, dict[str, Spread]]:
    """Variant -> score, ece, agreement as (mean, deviation); empty if the paper hasn't the task."""
    return _values()["table2"][shots].get(task, {})


def table3(task: str, test_set: str) -> Spread | None:
    """Accuracy on another test set of the paper's graft, as (mean, deviation)."""
    return _values()["table3"].get(task, {}).get(test_set)
