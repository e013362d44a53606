"""What a model of several tasks is called, and its scores by seed and by cell."""

import pandas as pd

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import words
from stages.merge.report.collecting import Merged

SINGLE_NAMES = {
    PRETRAINED: "pretrained, own heads",
    GRAFTED: "own graft of each task",
    FINETUNED: "own fine-tuned model of each task",
}


def label(method: str) -> str:
    """A method's name for people, with what it merges."""
    if method in SINGLE_NAMES:
        return SINGLE_NAMES[method]
    kind = "" if "graft" in method or "stitch" in method else " of whole models"
    return words(method) + kind


def by_cell(merged: Merged, group: str, method: str, measure: str = "score") -> pd.Series:
    """A measure of each (seed, task) of a group."""
    return merged.scores(group, method).set_index(["seed", "task"])[measure]


def by_seed(merged: Merged, group: str, method: str, measure: str = "score") -> pd.Series:
    """The mean over a group's tasks of a measure, for each seed."""
    return by_cell(merged, group, method, measure).groupby("seed").mean()
