"""Tables of task arithmetic."""

from typing import Any

import pandas as pd

from stages.lib.metrics.composition import KINDS
from stages.lib.report.document import Row, Table
from stages.lib.report.format import percent
from stages.lib.report.stats import mean_of
from stages.talos.report.collecting import Talos, ordered
from stages.talos.report.names import title
from stages.talos.report.paper import published

MIB = 2**20
SPREAD = "mean over cells (task, seed), in brackets their standard deviation; n is the number of cells"


def tables(talos: Talos) -> list[Table]:
    """Those there are data for, in the order in which they are read."""
    makers = (
        addition_table,
        negation_table,
        localization_table,
        disentangle_table,
        mask_table,
        calibration_table,
        cost_table,
    )
    found = [make(talos) for make in makers]
    return [table for table in found if table.rows]


def text(values: pd.Series) -> str:
    """Mean and deviation in %."""
    return mean_of(pd.to_numeric(values)).text()


def addition_table(talos: Talos) -> Table:
    """Absolute accuracy of one model for all tasks, and both ways to normalise it, side by side."""
    frame, rows, paper = talos.frames["addition"], [], published("addition")
    if len(frame):
        first = frame[frame.method == frame.method.iloc[0]]
        rows += [Row("ours", ["pretrained", str(len(first)), "", "", text(first.pretrained)])]
        rows += [Row("paper", ["  paper (ViT-B/32)", "", "", "", percent(paper["pretrained"]["accuracy"])])]
    for method in ordered(frame.method):
        part = frame[frame.method == method]
        cells = [text(part[name]) for name in ("single", "accuracy", "by_own", "by_full")]
        rows.append(Row("ours", [title(method), str(len(part)), _alphas(part), *cells]))
        if theirs := paper.get(method):
            values = [percent(theirs[name]) if name in theirs else "" for name in ("single", "accuracy", "by_own")]
            rows.append(Row("paper", ["  paper (ViT-B/32)", "", "", *values]))
    header = ["method", "n", "alpha", "single", "added", "added / own single", "added / full single"]
    notes = [
        f"accuracy on test in %; {SPREAD}",
        "single: the method's own model of that task alone; added: one model for all tasks, pretrained + alpha * sum of vectors",
        "a method with weak single models is flattered by added / own single; compare the absolute columns too",
        f"alpha is chosen on dev, the smallest of equally good ones; alpha 1/{len(talos.tasks)} is the average of the single models",
    ]  # fmt: skip
    return Table("Task addition", header, rows, notes)


def _alphas(part: pd.DataFrame) -> str:
    return ", ".join(f"{alpha:g}" for alpha in sorted(part.alpha.unique()))


def negation_table(talos: Talos) -> Table:
    """Accuracy on the task that is taken away, and on its control."""
    frame, rows, paper = talos.frames["negation"], [], published("negation")
    if len(frame):
        first = frame[frame.method == frame.method.iloc[0]]
        rows += [
            Row("ours", ["pretrained", str(len(first)), "", text(first.pretrained), text(first.control_zero_shot)])
        ]
        rows += [Row("paper", ["  paper (ViT-B/32)", "", "", *_pair(paper["pretrained"])])]
    for method in ordered(frame.method):
        part = frame[frame.method == method]
        rows.append(
            Row(
                "ours",
                [
                    title(method),
                    str(len(part)),
                    _alphas(part),
                    text(part.accuracy),
                    text(part.control_accuracy),
                    text(part.control_kept),
                ],
            )
        )
        if theirs := paper.get(method):
            rows.append(Row("paper", ["  paper (ViT-B/32)", "", "", *_pair(theirs)]))
    header = ["method", "n", "alpha", "target (lower is better)", "control", "control kept"]
    notes = [
        f"accuracy on test in %; {SPREAD}",
        "alpha is chosen on dev for each task: the lowest target accuracy among those that keep the control",
    ]
    return Table("Task negation", header, rows, notes + weak_controls(frame))


def _pair(values: dict[str, float]) -> list[str]:
    return [percent(values["target"]), percent(values["control"])]


def weak_controls(frame: pd.DataFrame) -> list[str]:
    """A line about controls that have nothing to lose, since they start at about chance."""
    weak = frame[frame.weak_control.astype(bool)] if len(frame) else frame
    cells = [
        f"{task} against {control}, seed {seed}"
        for task, control, seed in dict.fromkeys(zip(weak.task, weak.control, weak.seed, strict=True))
    ]
    return (
        [f"flagged: the control starts at about chance on dev, so keeping it says little: {'; '.join(cells)}"]
        if cells
        else []
    )


def localization_table(talos: Talos) -> Table:
    """What the model of one task does on itself and on the others."""
    frame, rows = talos.frames["localization"], []
    for method in ordered(frame.method):
        part = frame[frame.method == method]
        own = part.trained_on == part.task
        away = (part[~own].ratio - 1).abs()
        rows.append(
            Row("ours", [title(method), str(int(own.sum())), text(part[own].ratio), text(part[~own].ratio), text(away)])
        )
    header = ["method", "n", "own task", "other tasks", "distance from 1 on other tasks"]
    notes = [
        "accuracy / zero-shot accuracy of the pretrained model, in %; mean over cells, in brackets the standard deviation",
        "a vector that does nothing for its own task leaves others alone too: look at the own task first",
    ]
    return Table("Function localization", header, rows, notes)


def disentangle_table(talos: Talos) -> Table:
    """Error over the whole grid and where alpha is searched."""
    frame, rows = talos.frames["disentangle"], []
    for method in ordered(frame.method):
        part = frame[frame.method == method]
        cells = [str(part.groupby(["pair", "seed"]).ngroups)]
        for chosen in (part[_inside(part)], part):
            cells += [text(chosen.groupby(["pair", "seed"])[name].mean()) for name in ("e1", "e2", "mean")]
        rows.append(Row("ours", [title(method), *cells]))
    header = ["method", "n", "e1 searched", "e2 searched", "mean searched", "e1 all", "e2 all", "mean all"]
    notes = [
        "share of predictions that change when the other task's vector is added, in %, mean over the grid; searched: |alpha| of at most 1",
        "a vector that changes nothing has no error either: look at the own task in the table above",
    ]
    return Table("Weight-disentanglement error", header, rows, notes)


def _inside(part: pd.DataFrame) -> pd.Series:
    return part[["alpha1", "alpha2"]].abs().max(axis=1) <= 1


def mask_table(talos: Talos) -> Table:
    """Where masks lie, and how alike those of different tasks are."""
    frame, shared, rows = talos.frames["tensors"], talos.frames["task_iou"], []
    kinds = sorted({*frame.kind}, key=KINDS.index)
    for method in ordered(frame.method):
        part, both = frame[frame.method == method], shared[shared.method == method]
        cells = [text(share_of(part[part.kind == kind])) for kind in kinds]
        rows.append(Row("ours", [title(method), text(share_of(part)), *cells, text(both.iou), text(both.chance)]))
    header = ["method", "selected", *kinds, "IoU of two tasks", "by chance"]
    notes = [
        "share of the parameters of each kind that a mask selects, in %; mean over cells, in brackets the standard deviation"
    ]
    return Table("Masks", header, rows, notes)


def share_of(part: pd.DataFrame) -> pd.Series:
    """Selected / all parameters of some tensors, one value for each cell."""
    sums = part.groupby(["task", "seed"])[["selected", "parameters"]].sum()
    return sums.selected / sums.parameters


def calibration_table(talos: Talos) -> Table:
    """Overlap of the usual TaLoS mask with masks calibrated in other ways."""
    frame = talos.frames["overlap"]
    rows = [
        Row("ours", [name.replace("_", " "), str(len(part)), text(part.iou), text(part.chance)])
        for name, part in frame.groupby("variant", sort=False)
    ]
    notes = [
        "IoU with the mask calibrated as params.yaml says, in %; other draw repeats that with other labels drawn, which "
        "tells how much chance alone changes",
    ]
    return Table("Calibration of the TaLoS mask in other ways", ["calibration", "n", "IoU", "by chance"], rows, notes)


def cost_table(talos: Talos) -> Table:
    """What each method takes for one task."""
    frame, rows = talos.frames["cost"], []
    for method in ordered(frame.method):
        part = frame[frame.method == method]
        numbers = {name: mean_of(pd.to_numeric(part[name])).mean if name in part else None for name in COSTS}
        if numbers.get("train_seconds") is not None:
            numbers["step_seconds"] = numbers["train_seconds"] / numbers["steps"]
        rows.append(Row("ours", [title(method), *(form(numbers.get(name)) for name, form in COSTS.items())]))
    header = [
        "method",
        "gradient examples",
        "calibration s",
        "steps",
        "training s",
        "s / step",
        "peak MiB",
        "trained",
        "optimizer MiB",
        "checkpoint MiB",
    ]
    notes = [
        "mean over cells; gradient examples: backward passes of single examples before training; peak: of the whole process",
        "full and graft come from the main pipeline, whose time is not counted here; a graft trains the whole region first",
    ]
    return Table("Costs of one task", header, rows, notes)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,.0f}"


def _seconds(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"


def _mib(value: Any) -> str:
    return "" if value is None else f"{value / MIB:.1f}"


COSTS = {
    "gradient_examples": _number, "calibration_seconds": _seconds, "steps": _number, "train_seconds": _seconds,
    "step_seconds": _seconds, "peak_bytes": _mib, "trained": _number, "optimizer_bytes": _mib, "checkpoint_bytes": _mib,
}  # fmt: skip
