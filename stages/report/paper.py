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


def table1(task: str) -> dict[str, dict[str, Spread]]:
    """Variant (finetuned, graft, retrain, bitfit) -> score, ece as (mean, deviation); empty if the paper hasn't the task."""
    return _nested(_values()["table1"].get(task, {}))


def table3(task: str, test_set: str, column: str = "graft") -> Spread | None:
    """Accuracy on another test set of the paper's graft, retrain or bitfit, as (mean, deviation) in fractions."""
    pair = _values()["table3"].get(task, {}).get(test_set, {}).get(column)
    return pair and _fractions(pair)


def table4(method: str) -> dict[str, Spread]:
    """Task -> accuracy as (mean, deviation) after the last task, of FT, ContinualFT or GraftingContinual."""
    return _nested(_values()["table4"][method])


def table4_tasks() -> list[str]:
    """The paper's sequence of tasks."""
    return [*_values()["table4"]["FT"]]


def table5(task: str) -> dict[str | float, dict[str, float]]:
    """`finetuned` or a graft's sparsity -> score, ece in fractions, with 50,000 examples per class."""
    return _nested(_values()["table5"].get(task, {}))


def table6(method: str, size: float) -> dict[str, dict[str, Any]]:
    """Task -> score, ece as (mean, deviation); `average` -> score, ece as single numbers; all in fractions.

    `method` is lora, houlsby, pfeiffer or graft; `size` a rank or bottleneck, of a graft its sparsity
    (1 is the fine-tuned model).  Empty if the paper hasn't it.
    """
    return _nested(_values()["table6"].get(method, {}).get(size, {}))


def table7(method: str, size: float) -> dict[str, dict[str, Any]]:
    """Trained task -> test set -> accuracy as (mean, deviation); `average` -> id, ood; sizes as in `table6`."""
    return _nested(_values()["table7"].get(method, {}).get(size, {}))


def table8(task: str, sparsity: float) -> dict[str, Any]:
    """overlap -> (mean, deviation); learned, fish, random -> score, ece; all in fractions."""
    return _nested(_values()["table8"].get(task, {}).get(sparsity, {}))


def multitask(kind: str) -> float:
    """Relative gain of a `union` of regions, or a `purified` one, on its own tasks, roughly."""
    return _nested(_values()["multitask"][kind])


def _nested(value: Any) -> Any:
    """A part of the values in fractions, pairs as tuples."""
    if isinstance(value, dict):
        return {name: _nested(part) for name, part in value.items()}
    return _fractions(value) if isinstance(value, list) else value / 100


def _fractions(pair: list[float]) -> Spread:
    mean, deviation = pair
    return mean / 100, deviation / 100
