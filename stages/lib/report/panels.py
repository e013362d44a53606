"""Panels that several reports draw: bars with whiskers side by side, and heat-maps with their values written in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from stages.lib.report.line_styles import LINE_STYLES
from stages.lib.report.stats import Mean
from stages.lib.report.style import wrapped

HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "--", "**")
# a number in a cell of a heat-map takes so much of the width that panels have
WIDTH_INCHES, NUMBER_INCHES = 7.2, 0.45
MOST_COLUMNS = 3


def draw_bars(panel: Axes, groups: Mapping[str, Sequence[Mean]], labels: Sequence[str]) -> None:
    """For each label a bar for each group, in %: `groups[name][place of the label]`, with its deviation where there is one."""
    width = 0.8 / len(groups)
    for number, (name, means) in enumerate(groups.items()):
        places = np.arange(len(labels)) + (number - (len(groups) - 1) / 2) * width
        panel.bar(
            places, [100 * (mean.mean or 0) for mean in means], width, label=name, color=LINE_STYLES[number][0],
            yerr=[np.nan if mean.sd is None else 100 * mean.sd for mean in means], hatch=HATCHES[number], edgecolor="black",
            linewidth=0.6, error_kw={"elinewidth": 1, "capsize": 2},
        )  # fmt: skip
    names = [wrapped(label) if "\n" not in label else label for label in labels]
    panel.set_xticks(np.arange(len(labels)), names, fontsize=9)
    panel.set_ylim(bottom=0)


def write_values(
    panel: Axes, values: np.ndarray, dark: np.ndarray, places: Iterable[Any] | None = None, size: float = 9
) -> None:
    """Write each value of a heat-map into its cell, in white where the cell is `dark`; NaN is left out.

    `places`: coordinates of rows and columns, where they are not their numbers.
    """
    along = np.arange(max(values.shape)) if places is None else [*places]
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            color = "white" if dark[row, column] else "black"
            panel.text(along[column], along[row], f"{value:.2f}", ha="center", va="center", fontsize=size, color=color)


def arranged(panels: int, cells: int = 1) -> tuple[int, int]:
    """Rows and columns of panels; as few columns as leave room for a number in each of a panel's `cells` beside each other."""
    columns = min(MOST_COLUMNS, panels, max(1, int(WIDTH_INCHES / (NUMBER_INCHES * cells))))
    rows = math.ceil(panels / columns)
    return rows, math.ceil(panels / rows)
