"""The paper's own values, to stand beside ours, as fractions (paper.yaml); empty where the paper has none."""

from functools import cache
from pathlib import Path
from typing import Any

from stages.lib.report.load import published


@cache
def _values() -> dict[str, Any]:
    return published(Path(__file__).parents[1] / "paper.yaml")


def table1(task: str) -> dict[str, Any]:
    """Variant (finetuned, graft, retrain, bitfit) -> score, ece as (mean, deviation)."""
    return _values()["table1"].get(task, {})


def table3(task: str, test_set: str, column: str = "graft") -> tuple[float, float] | None:
    """Accuracy on another test set of the paper's graft, retrain or bitfit, as (mean, deviation)."""
    return _values()["table3"].get(task, {}).get(test_set, {}).get(column)


def table5(task: str) -> dict[str | float, dict[str, float]]:
    """`finetuned` or a graft's sparsity -> score, ece, with 50,000 examples per class."""
    return _values()["table5"].get(task, {})


def table6(method: str, size: float) -> dict[str, dict[str, Any]]:
    """Task -> score, ece as (mean, deviation); `average` -> score, ece as single numbers.

    `method` is lora, houlsby, pfeiffer or graft; `size` a rank or bottleneck, of a graft its sparsity
    (1 is the fine-tuned model).
    """
    return _values()["table6"].get(method, {}).get(size, {})


def table7(method: str, size: float) -> dict[str, dict[str, Any]]:
    """Trained task -> test set -> accuracy as (mean, deviation); `average` -> id, ood; sizes as in `table6`."""
    return _values()["table7"].get(method, {}).get(size, {})


def table8(task: str, sparsity: float) -> dict[str, Any]:
    """overlap -> (mean, deviation); learned, fish, random -> score, ece."""
    return _values()["table8"].get(task, {}).get(sparsity, {})
