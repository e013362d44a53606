"""The numbers of task arithmetic for `dvc metrics`: nested dicts of n, mean and sd, fractions 0..1.

addition     method -> accuracy, single, by_own, by_full
negation     method -> target, control, control_kept
localization method -> own, other (accuracy / zero-shot accuracy)
disentangle  method -> searched, all (mean error)
pruned       least, random, most -> accuracy / zero-shot accuracy
masks        method -> task_iou, chance
calibration  variant -> IoU with the usual mask
compare      first-second -> difference of accuracy after addition and of target accuracy after negation, with low and high
"""

from typing import Any

import pandas as pd

from stages.lib.report.stats import clean, mean_of
from stages.talos.report import findings
from stages.talos.report.collecting import Talos

COMPARED = (("talos", "full"), ("talos", "linear"), ("talos", "random"), ("graft", "full"), ("graft", "talos"))


def summary(talos: Talos) -> dict[str, Any]:
    """All of it, without the stages that are off."""
    frames = talos.frames
    disentangle = frames["disentangle"]
    inside = disentangle[disentangle[["alpha1", "alpha2"]].abs().max(axis=1) <= 1]
    parts = {
        "addition": _by(
            frames["addition"], "method", {name: name for name in ("accuracy", "single", "by_own", "by_full")}
        ),
        "negation": _by(
            frames["negation"],
            "method",
            {"target": "accuracy", "control": "control_accuracy", "control_kept": "control_kept"},
        ),
        "localization": _localization(frames["localization"]),
        "disentangle": _errors(inside, disentangle),
        "pruned": _by(frames["pruned"], "kind", {"ratio": "ratio"}),
        "masks": _by(frames["task_iou"], "method", {"task_iou": "iou", "chance": "chance"}),
        "calibration": _by(frames["overlap"], "variant", {"iou": "iou"}),
        "compare": _compare(talos),
    }
    return clean({name: part for name, part in parts.items() if part})


def _by(frame: pd.DataFrame, key: str, measures: dict[str, str]) -> dict[str, Any]:
    return {
        name: {measure: mean_of(pd.to_numeric(part[column])).numbers() for measure, column in measures.items()}
        for name, part in frame.groupby(key, sort=False)
    }


def _localization(frame: pd.DataFrame) -> dict[str, Any]:
    where = (frame.trained_on == frame.task).map({True: "own", False: "other"})
    return {
        name: {place: mean_of(pd.to_numeric(values.ratio)).numbers() for place, values in part.groupby(where)}
        for name, part in frame.groupby("method", sort=False)
    }


def _errors(inside: pd.DataFrame, whole: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, frame in (("searched", inside), ("all", whole)):
        for name, part in frame.groupby("method", sort=False):
            found.setdefault(name, {})[place] = mean_of(part.groupby(["pair", "seed"])["mean"].mean()).numbers()
    return found


def _compare(talos: Talos) -> dict[str, Any]:
    found = {}
    for first, second in COMPARED:
        both = {"added": findings.added(talos, first, second), "negated": findings.negated(talos, first, second)}
        numbers = {name: value.numbers() for name, value in both.items() if value.n}
        if numbers:
            found[f"{first}-{second}"] = numbers
    return found
