"""Bars: addition, where masks lie, and how alike those of two tasks are."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.composition import KINDS
from stages.lib.report.format import counted
from stages.lib.report.line_styles import LINE_STYLES, explain, framed
from stages.lib.report.stats import mean_of
from stages.lib.report.style import wrapped
from stages.talos.report.collecting import Talos, ordered
from stages.talos.report.names import title
from stages.talos.report.tables import share_of

HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "--", "**")
COMPARED = ("talos", "lota", "graft")
MEASURES = {"single": "single-task models", "accuracy": "one model for all, added", "by_own": "added / own single"}


def addition_figure(talos: Talos) -> Figure | None:
    """Absolute and normalised accuracy of every method."""
    frame = talos.frames["addition"]
    if not len(frame):
        return None
    methods = ordered(frame.method)
    drawn = framed(
        3.4, "Added together: what is left of each task, and how good the single models were",
        "Test accuracy, and accuracy / that of the method's own single-task model, in %.",
        f"bars: mean over {counted(frame.groupby(['task', 'seed']).ngroups, 'cell')} (task, seed), whiskers: standard "
        "deviation over them; dotted line: pretrained model, zero-shot.", [*MEASURES.values()],
    )  # fmt: skip
    panel = drawn.subplots()
    groups = {label: [frame[frame.method == name][measure] for name in methods] for measure, label in MEASURES.items()}
    _bars(panel, groups, [title(name) for name in methods])
    panel.axhline(100 * frame.pretrained.mean(), color="#555555", linestyle=":", linewidth=1.4)
    panel.set_ylabel("%")
    explain(drawn, [panel])
    return drawn


def mask_figure(talos: Talos) -> Figure | None:
    """Share of the parameters of each kind and layer that masks select."""
    frame = talos.frames["tensors"]
    methods = [name for name in ordered(frame.method) if name in COMPARED]
    if not methods:
        return None
    drawn = framed(
        5.6, "Where the trained parameters lie: the least sensitive (TaLoS) against those that move most (LoTA)",
        "Share of the parameters of each kind of tensor, and of each layer, that the mask selects, in %.",
        "bars: mean over cells (task, seed), whiskers: standard deviation; a mask without preferences would have equal bars.",
        [title(name) for name in methods],
    )  # fmt: skip
    upper, lower = drawn.subplots(2, 1)
    for panel, column in ((upper, "kind"), (lower, "layer")):
        places = sorted({*frame[column].dropna()}, key=KINDS.index if column == "kind" else None)
        groups = {
            title(name): [share_of(frame[(frame.method == name) & (frame[column] == place)]) for place in places]
            for name in methods
        }
        labels = [wrapped(str(place), 13) if column == "kind" else f"layer {int(place)}" for place in places]
        _bars(panel, groups, labels)
        panel.set_ylabel("% selected")
    explain(drawn, [upper])
    return drawn


def overlap_figure(talos: Talos) -> Figure | None:
    """IoU of the masks of two tasks, for every method that has masks of its own."""
    frame = talos.frames["task_iou"]
    methods = [name for name in ordered(frame.method) if name != "attention"]
    frame = frame[frame.method.isin(methods)]
    if not len(frame):
        return None
    drawn = framed(
        3.2, "Are the masks of two tasks alike? The premise of TaLoS is that the least sensitive ones are",
        "Intersection over union of the masks of two tasks, in %.",
        "bars: mean over pairs of tasks and seeds, whiskers: standard deviation over them.", ["two tasks", "by chance"],
    )  # fmt: skip
    panel = drawn.subplots()
    groups = {
        "two tasks": [frame[frame.method == name].iou for name in methods],
        "by chance": [frame[frame.method == name].chance for name in methods],
    }
    _bars(panel, groups, [title(name) for name in methods])
    panel.set_ylabel("IoU in %")
    explain(drawn, [panel])
    return drawn


def _bars(panel: Axes, groups: dict[str, list[Any]], labels: list[str]) -> None:
    width = 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        means = [mean_of(pd.to_numeric(part)) for part in values]
        places = np.arange(len(labels)) + (number - (len(groups) - 1) / 2) * width
        panel.bar(
            places, [100 * (mean.mean or 0) for mean in means], width, label=name, color=LINE_STYLES[number][0],
            yerr=[100 * (mean.sd or 0) for mean in means], hatch=HATCHES[number], edgecolor="black", linewidth=0.6,
            error_kw={"elinewidth": 1, "capsize": 2},
        )  # fmt: skip
    panel.set_xticks(
        np.arange(len(labels)), [wrapped(label) if "\n" not in label else label for label in labels], fontsize=9
    )
    panel.set_ylim(bottom=0)
