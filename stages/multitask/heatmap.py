"""Matrices as heatmaps with the values in their cells, legible from 2 x 2 to 13 x 13 and more."""

from dataclasses import dataclass

import matplotlib.cm
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stages.lib.report.style import figure, legend
from stages.multitask.contrasts import Grid

# one hue, evenly darker: the same order in grey
COLORS: Colormap = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", "#9CCBE8", "#0072B2", "#003B5C"])
# from this share of the darkest on, text is white
DARK = 0.5
UNKNOWN_LOOK = {"facecolor": "#EEEEEE", "hatch": "////"}
LINES = {"edgecolor": "#BBBBBB", "linewidth": 0.6}
# in inches: the names below the columns, and a row
NAMES, LOWEST, TALLEST, ALL_ROWS = 1.5, 0.40, 0.62, 5.6
# in rows: what a block has above it for its title
APART = 1.2
# size of values, by how many columns there are, and of what stands below them
SIZES, MANY, SMALLER = (11.0, 9.5), 8, 0.79


@dataclass(frozen=True)
class Block:
    """Rows of a heatmap that belong together; `framed` and `marked` hold (row, column) names."""

    title: str
    grid: Grid
    framed: set[tuple[str, str]]
    marked: set[tuple[str, str]]


@dataclass(frozen=True)
class Words:
    """The texts around a heatmap: `frame`, `mark` and `unknown` say what such cells are."""

    title: str
    details: str
    caption: str
    across: str
    frame: str
    mark: str
    unknown: str


def heatmap(blocks: list[Block], words: Words, top: float) -> Figure:
    """Blocks of rows below each other over the same columns.  Values are shown in %; `top` is the darkest one.

    A cell says its mean and, below it, the deviation over seeds, or of how few seeds it is where it lacks
    some.  One without a value is hatched, a framed one has a thick edge, a marked one a triangle.
    """
    columns = [*blocks[0].grid.mean.columns]
    rows = sum(len(block.grid.mean) + APART for block in blocks)
    height = float(np.clip(ALL_ROWS / len(columns), LOWEST, TALLEST))
    drawn = figure(height * rows + NAMES, words.title, words.details, words.caption)
    panel = drawn.subplots()
    bottom = _draw_blocks(panel, blocks, columns, top)
    panel.set(xlim=(-0.5, len(columns) - 0.5), ylim=(bottom - 0.4, 0.4))
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(columns) > MANY else {}
    panel.set_xticks(range(len(columns)), columns, **slanted)
    panel.tick_params(length=0)
    panel.set_xlabel(words.across)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    _explain(drawn, panel, words, blocks)
    bar = drawn.colorbar(matplotlib.cm.ScalarMappable(Normalize(0, 100 * top), COLORS), ax=panel, shrink=0.7, pad=0.02)
    bar.set_label("%")
    bar.outline.set_visible(False)
    return drawn


def _draw_blocks(panel: Axes, blocks: list[Block], columns: list[str], top: float) -> float:
    """Draw them from y = 0 downwards; gives where they end."""
    start, names = 0.0, {}
    size = SIZES[len(columns) > MANY]
    for block in blocks:
        start += APART
        panel.text(-0.5, start - 0.6, block.title, va="bottom", fontsize=10.5, color="#333333")
        for row, name in enumerate(block.grid.mean.index):
            names[start + row] = name
            for column, target in enumerate(columns):
                _draw_cell(panel, (column, start + row), block, (name, target), top, size)
        start += len(block.grid.mean)
    panel.set_yticks([*names], [*names.values()])
    return start


def _draw_cell(
    panel: Axes, at: tuple[float, float], block: Block, place: tuple[str, str], top: float, size: float
) -> None:
    x, y = at
    mean = block.grid.mean.at[place]
    share = 0.0 if pd.isna(mean) else float(np.clip(mean / top, 0, 1))
    color = "white" if share > DARK else "black"
    look = UNKNOWN_LOOK if pd.isna(mean) else {"facecolor": COLORS(share)}
    parts = [panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look, **LINES))]
    if place in block.framed:
        edge = Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor="black", linewidth=2, zorder=4)
        parts.append(panel.add_patch(edge))
    if place in block.marked:
        parts += panel.plot(x - 0.36, y - 0.33, marker="^", markersize=4, color=color, zorder=5)
    if not pd.isna(mean):
        below = _below(block.grid, place)
        aligned = {"ha": "center", "va": "center", "color": color}
        parts.append(panel.text(x, y - 0.14 * bool(below), _hundredths(mean), fontsize=size, **aligned))
        parts.append(panel.text(x, y + 0.26, below, fontsize=size * SMALLER, **aligned))
    for part in parts:
        part.set_in_layout(False)  # it lies in the panel, and measuring hundreds of them takes long


def _below(grid: Grid, place: tuple[str, str]) -> str:
    if grid.n.at[place] < grid.full.at[place]:
        return f"n={grid.n.at[place]}"
    return "" if pd.isna(grid.sd.at[place]) else f"±{_hundredths(grid.sd.at[place])}"


def _hundredths(value: float) -> str:
    """In %, whole from 10 on: "82", "-14", "3.1"."""
    percent = 100 * value
    text = f"{percent:.1f}" if abs(percent) < 9.95 else f"{percent:.0f}"
    return "0" if text in ("0.0", "-0.0") else text


def _explain(drawn: Figure, panel: Axes, words: Words, blocks: list[Block]) -> None:
    """A legend of what there is besides values."""
    frame = {"marker": "s", "markersize": 11, "markerfacecolor": "white", "markeredgecolor": "black"}
    panel.plot([], [], linestyle="", markeredgewidth=2, label=words.frame, **frame)
    if any(block.marked for block in blocks):
        panel.plot([], [], linestyle="", marker="^", markersize=6, color="black", label=words.mark)
    if any(block.grid.mean.isna().any(axis=None) for block in blocks):
        panel.add_patch(Rectangle((0, 0), 0, 0, label=words.unknown, **UNKNOWN_LOOK, **LINES))
    legend(drawn, panel)
