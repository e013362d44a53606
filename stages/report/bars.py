"""Bars of four variants side by side for each task or pair, with the seeds behind every mean."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import VARIANTS
from stages.lib.report.format import words
from stages.lib.report.style import bar_style, figure, legend

LEAST_PER_ROW, MOST_PER_ROW = 3, 7
ROW_HEIGHT = 3.1
BAR = 0.21


@dataclass(frozen=True)
class Bars:
    """What is drawn: `groups` maps a value of the column `group` of `frame` to the label below its bars."""

    frame: pd.DataFrame
    groups: dict[str, str]
    measure: str
    axis: str
    top: float | None = None


def bars_figure(bars: Bars, title: str, details: str, caption: str) -> Figure:
    """Means over seeds as bars, standard deviations as whiskers, seeds as dots, in rows of at most 7 groups."""
    names = list(bars.groups)
    rows = math.ceil(len(names) / MOST_PER_ROW)
    per_row = max(math.ceil(len(names) / rows), LEAST_PER_ROW)
    drawn = figure(ROW_HEIGHT * rows, title, details, caption)
    panels = drawn.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for number, panel in enumerate(panels):
        _draw_row(panel, bars, names[number * per_row : (number + 1) * per_row], per_row)
    legend(drawn, panels[0])
    return drawn


def _draw_row(panel: Axes, bars: Bars, names: list[str], per_row: int) -> None:
    for number, variant in enumerate(VARIANTS):
        places = np.arange(len(names)) + (number - (len(VARIANTS) - 1) / 2) * BAR
        rows = bars.frame[bars.frame.variant == variant]
        seeds = [100 * rows.loc[rows.group == name, bars.measure].dropna().to_numpy() for name in names]
        panel.bar(
            places,
            [values.mean() if len(values) else 0 for values in seeds],
            BAR,
            label=words(variant),
            **bar_style(variant),
        )
        for place, values in zip(places, seeds, strict=True):
            _draw_seeds(panel, place, values)
    panel.set_xlim(-0.55, per_row - 0.45)
    panel.set_xticks(range(len(names)), [bars.groups[name] for name in names])
    panel.tick_params(axis="x", length=0)
    panel.set_ylabel(bars.axis)
    panel.set_ylim(0, bars.top)


def _draw_seeds(panel: Axes, place: float, values: np.ndarray) -> None:
    if len(values) > 1:
        panel.errorbar(place, values.mean(), values.std(ddof=1), color="black", linewidth=1.2, capsize=3, zorder=3)
        beside = place + np.linspace(-BAR / 4, BAR / 4, len(values))
        panel.scatter(beside, values, s=11, facecolor="white", edgecolor="black", linewidth=0.7, zorder=4)
