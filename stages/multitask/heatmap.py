"""Matrices as heat-maps with the values in their cells, legible from 2 x 2 to 13 x 13 and more."""

from dataclasses import dataclass

import matplotlib.cm
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stages.lib.report.style import figure, legend, wrapped
from stages.multitask.contrasts import Grid

# one hue above 0 and another below, each evenly darker: the same order in grey
COLORS: Colormap = LinearSegmentedColormap.from_list(
    "signed", ["#7A3600", "#D55E00", "#F6C9A0", "#FFFFFF", "#9CCBE8", "#0072B2", "#003B5C"], 512
)
# from this share of the darkest on, text is white
DARK = 0.5
UNKNOWN_LOOK = {"facecolor": "#EEEEEE", "hatch": "////", "edgecolor": "#BBBBBB", "linewidth": 0.6}
# in inches: the names below the columns, what a block has above it, and a row
NAMES, APART, LOWEST, TALLEST, ALL_ROWS = 1.2, 0.45, 0.40, 0.62, 5.6
# size of values, by how many columns there are, and of what stands below them
SIZES, MANY, SMALLER = (11.0, 9.5), 8, 0.79


@dataclass(frozen=True)
class Block:
    """Rows of a heat-map that belong together; `framed` and `marked` hold (row, column) names."""

    title: str
    grid: Grid
    framed: set[tuple[str, str]]
    marked: set[tuple[str, str]]


def heatmap(blocks: list[Block], title: str, details: str, caption: str, across: str, **cells: str) -> Figure:
    """Blocks of rows below each other over the same columns, values in %; the colours reach as far as the values.

    A cell says its mean and, below it, the deviation over seeds, or of how few seeds it is where it lacks
    some.  One without a value is hatched, a framed one has a thick edge, a marked one a triangle; what such `cells` are
    the legend says: `unknown`, `frame` and `mark`.
    """
    columns, rows = [*blocks[0].grid.mean.columns], [len(block.grid.mean) for block in blocks]
    values = np.concatenate([block.grid.mean.to_numpy(float).ravel() for block in blocks])
    top = float(np.nanmax([0.01, *np.abs(values)]))
    height = float(np.clip(ALL_ROWS / len(columns), LOWEST, TALLEST))
    drawn = figure(height * sum(rows) + APART * len(blocks) + NAMES, title, details, caption)
    panels = drawn.subplots(len(blocks), 1, squeeze=False, sharex=True, height_ratios=rows)[:, 0]
    for panel, block in zip(panels, blocks, strict=True):
        _draw_block(panel, block, top, SIZES[len(columns) > MANY])
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(columns) > MANY else {}
    panels[-1].set_xticks(range(len(columns)), [wrapped(name, 14) for name in columns], **slanted)
    panels[-1].set_xlabel(across)
    _explain(drawn, panels[0], blocks, **cells)
    scale = matplotlib.cm.ScalarMappable(Normalize(-100 * top, 100 * top), COLORS)
    bar = drawn.colorbar(scale, ax=[*panels], shrink=0.7, pad=0.02, label="%")
    bar.ax.set_ylim(100 * min(float(np.nanmin([0.0, *values])), 0.0), 100 * top)
    bar.outline.set_visible(False)
    return drawn


def _draw_block(panel: Axes, block: Block, top: float, size: float) -> None:
    mean = block.grid.mean
    panel.imshow(mean.to_numpy(float), cmap=COLORS, vmin=-top, vmax=top, aspect="auto")
    panel.set_title(block.title, loc="left", fontsize=10.5, color="#333333")
    panel.set_yticks(range(len(mean)), mean.index)
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    for row, name in enumerate(mean.index):
        for column, target in enumerate(mean.columns):
            for part in _marks(panel, (column, row), block, (name, target), top, size):
                part.set_in_layout(False)  # it lies in the panel, and measuring hundreds of them takes long


def _marks(panel: Axes, at: tuple[int, int], block: Block, place: tuple[str, str], top: float, size: float) -> list:
    (x, y), mean = at, block.grid.mean.at[place]
    color = "white" if abs(mean) / top > DARK else "black"
    parts = []
    if pd.isna(mean):
        parts.append(panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **UNKNOWN_LOOK)))
    else:
        below, look = _below(block.grid, place), {"ha": "center", "va": "center", "color": color}
        parts.append(panel.text(x, y - 0.14 * bool(below), _hundredths(mean), fontsize=size, **look))
        parts.append(panel.text(x, y + 0.26, below, fontsize=size * SMALLER, **look))
    if place in block.framed:
        edge = {"fill": False, "edgecolor": "black", "linewidth": 2, "zorder": 4}
        parts.append(panel.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, **edge)))
    if place in block.marked:
        parts += panel.plot(x - 0.36, y - 0.33, marker="^", markersize=4, color=color, zorder=5)
    return parts


def _below(grid: Grid, place: tuple[str, str]) -> str:
    if grid.n.at[place] < grid.full.at[place]:
        return f"n={grid.n.at[place]}"
    return "" if pd.isna(grid.sd.at[place]) else f"±{_hundredths(grid.sd.at[place])}"


def _hundredths(value: float) -> str:
    """In %, whole from 10 on: "82", "-14", "3.1"."""
    percent = 100 * value
    text = f"{percent:.1f}" if abs(percent) < 9.95 else f"{percent:.0f}"
    return "0" if text in ("0.0", "-0.0") else text


def _explain(drawn: Figure, panel: Axes, blocks: list[Block], frame: str, mark: str, unknown: str) -> None:
    """A legend of what there is besides values."""
    look = {"marker": "s", "markersize": 11, "markerfacecolor": "white", "markeredgecolor": "black"}
    panel.plot([], [], linestyle="", markeredgewidth=2, label=frame, **look)
    if any(block.marked for block in blocks):
        panel.plot([], [], linestyle="", marker="^", markersize=6, color="black", label=mark)
    if any(block.grid.mean.isna().any(axis=None) for block in blocks):
        panel.add_patch(Rectangle((0, 0), 0, 0, label=unknown, **UNKNOWN_LOOK))
    legend(drawn, panel)
