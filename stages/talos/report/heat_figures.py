"""Heat-maps: pruning, function localization, and disentanglement error."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stages.lib.report.format import counted
from stages.lib.report.style import figure
from stages.talos.report.collecting import Talos, ordered
from stages.talos.report.names import title

# lightness falls evenly along it, so that it can be read in grey
SEQUENTIAL = "Blues"
CELL_INCHES, LABELS_INCHES = 0.62, 1.25
MOST_COLUMNS = 3
WIDTH_INCHES, NUMBER_INCHES = 7.2, 0.45
KINDS = {"least": "least sensitive", "random": "random", "most": "most sensitive"}
DARK = 0.55


def pruning_figure(talos: Talos) -> Figure | None:
    """Accuracy after pruning / before, by which task the parameters were scored on."""
    frame = talos.frames["pruned"]
    if not len(frame):
        return None
    panels = {name: _square(frame[frame.kind == kind], "scored_on", talos.tasks) for kind, name in KINDS.items()}
    return _ratios(
        panels, "scored on", "Accuracy kept with the least sensitive, random or most sensitive parameters set to 0",
        "Zero-shot accuracy with a share of the region set to 0 / without; 1 is no change.", talos,
    )  # fmt: skip


def localization_figure(talos: Talos) -> Figure | None:
    """Accuracy of the model of one task on all tasks / that of the pretrained model."""
    frame = talos.frames["localization"]
    if not len(frame):
        return None
    panels = {
        title(name): _square(frame[frame.method == name], "trained_on", talos.tasks) for name in ordered(frame.method)
    }
    return _ratios(
        panels, "trained on", "What a task's vector does to its own task (diagonal) and to the others (1: nothing)",
        "Test accuracy of each task's model / zero-shot accuracy of the pretrained model.", talos,
    )  # fmt: skip


def disentangle_figure(talos: Talos) -> Figure | None:
    """Mean error over the plane of both coefficients, with the box in which alpha is searched."""
    frame = talos.frames["disentangle"]
    if not len(frame):
        return None
    names = [(pair, method) for pair in dict.fromkeys(frame.pair) for method in ordered(frame.method)]
    rows, columns = _layout(len(names))
    drawn = figure(
        rows * 2.75, "Predictions that change when the other task's vector is added; disentangled: white everywhere",
        "Share of predictions that the other task's vector changes. Box: where alpha is searched.",
        _caption(talos, "mean of both tasks' errors; pairs of tasks: " + ", ".join(dict.fromkeys(frame.pair))),
    )  # fmt: skip
    axes = [*drawn.subplots(rows, columns, squeeze=False).flat]
    for panel, (pair, method) in zip(axes, names, strict=False):
        part = frame[(frame.pair == pair) & (frame.method == method)]
        image = _plane(panel, part, title(method), *pair.split("+"))
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    drawn.colorbar(image, ax=[*drawn.axes], label="error", shrink=0.8)
    return drawn


def _plane(panel: Axes, part: pd.DataFrame, name: str, first: str, second: str) -> Any:
    grid = part.pivot_table(index="alpha2", columns="alpha1", values="mean")
    alphas = grid.columns.to_numpy(float)
    step = alphas[1] - alphas[0]
    image = panel.pcolormesh(alphas, alphas, grid.to_numpy(), vmin=0, vmax=1, cmap=SEQUENTIAL, shading="nearest")
    panel.add_patch(Rectangle((-1, -1), 2, 2, fill=False, edgecolor="#D55E00", linewidth=2, linestyle="--"))
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        if len(alphas) <= 7:
            color = "white" if value > DARK else "black"
            panel.text(alphas[column], alphas[row], f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    panel.set(title=name, xlabel=f"alpha of {first}", ylabel=f"alpha of {second}", aspect="equal")
    panel.set_xlim(alphas[0] - step / 2, alphas[-1] + step / 2)
    panel.grid(visible=False)
    return image


def _square(part: pd.DataFrame, row: str, tasks: list[str]) -> np.ndarray:
    table = part.assign(ratio=pd.to_numeric(part.ratio)).pivot_table(index=row, columns="task", values="ratio")
    return table.reindex(index=tasks, columns=tasks).to_numpy(float)


def _ratios(panels: dict[str, np.ndarray], rows_are: str, headline: str, details: str, talos: Talos) -> Figure:
    rows, columns = _layout(len(panels), len(talos.tasks))
    height = min(CELL_INCHES * len(talos.tasks), WIDTH_INCHES / columns) + LABELS_INCHES
    drawn = figure(rows * height, headline, details, _caption(talos, f"rows: {rows_are}; columns: tested on"))
    axes = drawn.subplots(rows, columns, squeeze=False)
    known = np.concatenate([values[~np.isnan(values)] for values in panels.values()])
    away = float(np.abs(known - 1).max(initial=0.0)) or 0.1
    norm = TwoSlopeNorm(1.0, 1 - away, 1 + away)
    for number, panel in enumerate(axes.flat):
        if number >= len(panels):
            panel.set_visible(False)
            continue
        name, values = [*panels.items()][number]
        image = panel.imshow(values, norm=norm, cmap="PuOr_r")
        _write_in(panel, values, norm)
        panel.set_title(name)
        panel.set_xticks(range(len(talos.tasks)), talos.tasks, rotation=35, ha="right", fontsize=9)
        panel.set_yticks(range(len(talos.tasks)), talos.tasks if number % columns == 0 else [], fontsize=9)
        panel.grid(visible=False)
    drawn.colorbar(image, ax=[*axes.flat], label="accuracy ratio", shrink=0.8)
    return drawn


def _write_in(panel: Axes, values: np.ndarray, norm: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        strong = abs(norm(value) - 0.5) > 0.3
        panel.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=9, color="white" if strong else "black"
        )


def _layout(panels: int, tasks: int = 1) -> tuple[int, int]:
    """Rows and columns of panels; as few columns as leave room for a number in each of a panel's cells."""
    columns = min(MOST_COLUMNS, panels, max(1, int(WIDTH_INCHES / (NUMBER_INCHES * tasks))))
    return math.ceil(panels / columns), columns


def _caption(talos: Talos, more: str) -> str:
    return f"{more}; mean over {counted(len(talos.seeds), 'seed')}."
