"""The paper's own values, to stand beside ours (paper.yaml)."""

from pathlib import Path

from stages.lib.report.load import published


def multitask(kind: str) -> float:
    """Relative gain of a `union` of regions, or a `purified` one, on its own tasks, roughly."""
    return published(Path(__file__).parents[1] / "paper.yaml")["multitask"][kind]
