"""Figures of task arithmetic: heat-maps of pruning, localization and disentanglement; bars of addition and of masks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stages.lib.metrics.composition import KINDS
from stages.lib.report.format import counted
from stages.lib.report.line_styles import explain, framed
from stages.lib.report.load import Collected
from stages.lib.report.panels import WIDTH_INCHES, arranged, draw_bars, write_values
from stages.lib.report.style import figure, wrapped
from stages.talos.report import ordered, share_of, title

# lightness falls evenly along it, so that it can be read in grey
SEQUENTIAL = "Blues"
CELL_INCHES, LABELS_INCHES = 0.62, 1.25
PRUNED = {"least": "least sensitive", "random": "random", "most": "most sensitive"}
DARK = 0.55
MOST_WRITTEN = 7
COMPARED = ("talos", "lota", "graft")
MEASURES = {"single": "single-task models", "accuracy": "one model for all, added", "by_own": "added / own single"}


def pruning_figure(talos: Collected) -> Figure | None:
    """Accuracy after pruning / before, by which task the parameters were scored on."""
    frame = talos.frames["pruned"]
    if not len(frame):
        return None
    panels = {name: _square(frame[frame.kind == kind], "scored_on", talos.tasks) for kind, name in PRUNED.items()}
    return _ratios(
        talos, panels, "scored on", "Accuracy kept with the least sensitive, random or most sensitive parameters set to 0",
        "Zero-shot accuracy with a share of the region set to 0 / without; 1 is no change.",
    )  # fmt: skip


def localization_figure(talos: Collected) -> Figure | None:
    """Accuracy of the model of one task on all tasks / that of the pretrained model."""
    frame = talos.frames["localization"]
    if not len(frame):
        return None
    methods = ordered(frame.method)
    panels = {title(name): _square(frame[frame.method == name], "trained_on", talos.tasks) for name in methods}
    return _ratios(
        talos, panels, "trained on", "What a task's vector does to its own task (diagonal) and to the others (1: nothing)",
        "Test accuracy of each task's model / zero-shot accuracy of the pretrained model.",
    )  # fmt: skip


def disentangle_figure(talos: Collected) -> Figure | None:
    """Mean error over the plane of both coefficients, with the box in which alpha is searched."""
    frame = talos.frames["disentangle"]
    if not len(frame):
        return None
    names = [(pair, method) for pair in dict.fromkeys(frame.pair) for method in ordered(frame.method)]
    rows, columns = arranged(len(names))
    drawn = figure(
        rows * 2.75, "Predictions that change when the other task's vector is added; disentangled: white everywhere",
        "Share of predictions that the other task's vector changes. Box: where alpha is searched.",
        _caption(talos, "mean of both tasks' errors; pairs of tasks: " + ", ".join(dict.fromkeys(frame.pair))),
    )  # fmt: skip
    axes = [*drawn.subplots(rows, columns, squeeze=False).flat]
    for panel, (pair, method) in zip(axes, names, strict=False):
        image = _plane(panel, frame[(frame.pair == pair) & (frame.method == method)], title(method), *pair.split("+"))
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    drawn.colorbar(image, ax=[*drawn.axes], label="error", shrink=0.8)
    return drawn


def _plane(panel: Axes, part: pd.DataFrame, name: str, first: str, second: str) -> Any:
    grid = part.pivot_table(index="alpha2", columns="alpha1", values="mean")
    alphas, errors = grid.columns.to_numpy(float), grid.to_numpy()
    step = alphas[1] - alphas[0]
    image = panel.pcolormesh(alphas, alphas, errors, vmin=0, vmax=1, cmap=SEQUENTIAL, shading="nearest")
    panel.add_patch(Rectangle((-1, -1), 2, 2, fill=False, edgecolor="#D55E00", linewidth=2, linestyle="--"))
    if len(alphas) <= MOST_WRITTEN:
        write_values(panel, errors, errors > DARK, alphas, size=8)
    panel.set(title=name, xlabel=f"alpha of {first}", ylabel=f"alpha of {second}", aspect="equal")
    panel.set_xlim(alphas[0] - step / 2, alphas[-1] + step / 2)
    panel.grid(visible=False)
    return image


def _square(part: pd.DataFrame, row: str, tasks: list[str]) -> np.ndarray:
    table = part.assign(ratio=pd.to_numeric(part.ratio)).pivot_table(index=row, columns="task", values="ratio")
    return table.reindex(index=tasks, columns=tasks).to_numpy(float)


def _ratios(talos: Collected, panels: dict[str, np.ndarray], rows_are: str, headline: str, details: str) -> Figure:
    tasks = talos.tasks
    rows, columns = arranged(len(panels), len(tasks))
    height = min(CELL_INCHES * len(tasks), WIDTH_INCHES / columns) + LABELS_INCHES
    drawn = figure(rows * height, headline, details, _caption(talos, f"rows: {rows_are}; columns: tested on"))
    axes = drawn.subplots(rows, columns, squeeze=False)
    known = np.concatenate([values[~np.isnan(values)] for values in panels.values()])
    away = float(np.abs(known - 1).max(initial=0.0)) or 0.1
    norm = TwoSlopeNorm(1.0, 1 - away, 1 + away)
    for number, (panel, (name, values)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        image = panel.imshow(values, norm=norm, cmap="PuOr_r")
        write_values(panel, values, np.abs(norm(values) - 0.5) > 0.3)
        panel.set_title(name)
        panel.set_xticks(range(len(tasks)), tasks, rotation=35, ha="right", fontsize=9)
        panel.set_yticks(range(len(tasks)), tasks if number % columns == 0 else [], fontsize=9)
        panel.grid(visible=False)
    for panel in [*axes.flat][len(panels) :]:
        panel.set_visible(False)
    drawn.colorbar(image, ax=[*axes.flat], label="accuracy ratio", shrink=0.8)
    return drawn


def _caption(talos: Collected, more: str) -> str:
    return f"{more}; mean over {counted(len(talos.seeds), 'seed')}."


def addition_figure(talos: Collected) -> Figure | None:
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
    draw_bars(panel, groups, [*map(title, methods)])
    panel.axhline(100 * frame.pretrained.mean(), color="#555555", linestyle=":", linewidth=1.4)
    panel.set_ylabel("%")
    explain(drawn, [panel])
    return drawn


def mask_figure(talos: Collected) -> Figure | None:
    """Share of the parameters of each kind and layer that masks select."""
    frame = talos.frames["tensors"]
    methods = [name for name in ordered(frame.method) if name in COMPARED]
    if not methods:
        return None
    drawn = framed(
        5.6, "Where the trained parameters lie: the least sensitive (TaLoS) against those that move most (LoTA)",
        "Share of the parameters of each kind of tensor, and of each layer, that the mask selects, in %.",
        "bars: mean over cells (task, seed), whiskers: standard deviation; a mask without preferences would have equal bars.",
        [*map(title, methods)],
    )  # fmt: skip
    upper, lower = drawn.subplots(2, 1)
    for panel, column in ((upper, "kind"), (lower, "layer")):
        places = sorted({*frame[column].dropna()}, key=KINDS.index if column == "kind" else None)
        parts = {name: frame[frame.method == name] for name in methods}
        groups = {
            title(name): [share_of(part[part[column] == place]) for place in places] for name, part in parts.items()
        }
        draw_bars(
            panel, groups, [wrapped(place, 13) if column == "kind" else f"layer {int(place)}" for place in places]
        )
        panel.set_ylabel("% selected")
    explain(drawn, [upper])
    return drawn


def overlap_figure(talos: Collected) -> Figure | None:
    """IoU of the masks of two tasks, for every method that has masks of its own."""
    frame = talos.frames["task_iou"]
    methods = [name for name in ordered(frame.method) if name != "attention"]
    if not methods:
        return None
    drawn = framed(
        3.2, "Are the masks of two tasks alike? The premise of TaLoS is that the least sensitive ones are",
        "Intersection over union of the masks of two tasks, in %.",
        "bars: mean over pairs of tasks and seeds, whiskers: standard deviation over them.", ["two tasks", "by chance"],
    )  # fmt: skip
    panel = drawn.subplots()
    parts = [frame[frame.method == name] for name in methods]
    groups = {"two tasks": [part.iou for part in parts], "by chance": [part.chance for part in parts]}
    draw_bars(panel, groups, [*map(title, methods)])
    panel.set_ylabel("IoU in %")
    explain(drawn, [panel])
    return drawn


FIGURES: dict[str, Callable[[Collected], Figure | None]] = {
    "pruning": pruning_figure,
    "localization": localization_figure,
    "disentanglement": disentangle_figure,
    "added": addition_figure,
    "masks": mask_figure,
    "task_overlap": overlap_figure,
}
