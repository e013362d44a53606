"""The study's numbers for `dvc metrics`: nested dicts of n, mean and sd, nothing else.

    anchor     variant -> measure -> n, mean, sd
    sweep      localizer -> sparsity -> measure -> ...
    readout    readout -> localizer -> sparsity -> measure -> ...
    wise       variant -> alpha -> measure -> ...
    peft       method -> measure -> ...
    paradigm   paradigm -> variant -> sparsity ("all" for the fine-tuned model) -> measure -> ...
    trajectory variant -> sparsity -> last step's measures
    compare    first-second -> difference of score, with low, high and positive; at `sparsity`
    overlap    first-second -> sparsity -> iou, chance
    cost       localizer -> sparsity -> seconds, gradient_examples

Cells are (task, seed); n, mean and sd are over cells; measures are fractions 0..1 on the own test
set, and `ood_score` is the score on the task's other test sets.
"""

from typing import Any

import pandas as pd

from stages.lib.report.stats import clean, mean_of
from stages.study.report import choosing
from stages.study.report.collecting import Study
from stages.study.report.comparing import compared, gaps

MEASURES = ("score", "accuracy", "ece", "agreement", "retained", "loss")
BY = {
    "anchor": ["variant"],
    "sweep": ["localizer", "sparsity"],
    "readout": ["readout", "localizer", "sparsity"],
    "wise": ["variant", "alpha"],
    "peft": ["method"],
    "paradigm": ["paradigm", "variant", "sparsity"],
    "trajectory": ["variant", "sparsity"],
}


def summary(study: Study) -> dict[str, Any]:
    """All of it, without the stages that are off."""
    parts = {stage: _stage(study, stage, by) for stage, by in BY.items()}
    parts |= {"compare": _compare(study), "overlap": _overlap(study), "cost": _cost(study)}
    parts["gap"] = {name: mean_of(values).numbers() for name, values in gaps(study).items()}
    return clean({name: part for name, part in parts.items() if part})


def _stage(study: Study, stage: str, by: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for where in ("id", "ood"):
        rows = _made_here(study.rows(stage, where), stage)
        for key, group in rows.groupby([_text(rows[name]) for name in by], sort=False):
            place = found
            for part in key:
                place = place.setdefault(part, {})
            if where == "id":
                place |= {name: mean_of(choosing.by_cell(group, name)).numbers() for name in MEASURES}
            else:
                place["ood_score"] = mean_of(choosing.by_cell(group)).numbers()
    return found


def _made_here(rows: pd.DataFrame, stage: str) -> pd.DataFrame:
    if stage in ("readout", "peft", "sweep"):
        return choosing.own(rows)
    return rows[rows.step == rows.groupby("task")["step"].transform("max")] if stage == "trajectory" else rows


def _compare(study: Study) -> dict[str, Any]:
    sizes = choosing.common_sparsities(study)
    if len(choosing.localizers(study)) < 2 or not sizes:
        return {}
    found = {f"{first}-{second}": value.numbers() for (first, second), value in compared(study, sizes[0]).items()}
    return {"sparsity": float(sizes[0]), **found}


def _overlap(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (first, second, sparsity), rows in study.frames["localizer_overlap"].groupby(["first", "second", "sparsity"]):
        numbers = {"iou": mean_of(rows.iou).numbers(), "chance": float(rows.chance.mean())}
        found.setdefault(f"{first}-{second}", {})[f"{sparsity:g}"] = numbers
    return found


def _cost(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (localizer, sparsity), rows in study.frames["cost"].groupby(["localizer", "sparsity"], sort=False):
        numbers = {name: mean_of(rows[name]).numbers() for name in ("seconds", "gradient_examples")}
        found.setdefault(localizer, {})[f"{sparsity:g}"] = numbers
    return found


def _text(values: pd.Series) -> pd.Series:
    """As keys: numbers in their shortest form, "all" where there is none."""
    return values.map(lambda value: "all" if pd.isna(value) else value if isinstance(value, str) else f"{value:g}")
