"""The paper's own values, to stand beside ours, as fractions (paper.yaml)."""

from functools import cache
from pathlib import Path
from typing import Any

from stages.lib.report.load import published


@cache
def _table4() -> dict[str, Any]:
    return published(Path(__file__).parents[1] / "paper.yaml")["table4"]


def table4(method: str) -> dict[str, tuple[float, float]]:
    """Task -> accuracy as (mean, deviation) after the last task, of FT, ContinualFT or GraftingContinual."""
    return _table4()[method]


def table4_tasks() -> list[str]:
    """The paper's sequence of tasks."""
    return [*_table4()["FT"]]
