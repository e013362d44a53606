"""Small multiples of curves: one panel for each task and one for their mean, with levels across."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stages.lib.report.format import words
from stages.lib.report.line_styles import LEVELS, explain, framed, grid
from stages.lib.report.style import wrapped

PANEL_HEIGHT = 2.45
MEAN = "mean of the tasks"
WHISKERS = "Points: means over seeds; whiskers: standard deviation over seeds."


@dataclass(frozen=True)
class Curve:
    """Rows with task, seed, the x column and the measure; drawn as a line through the means over seeds."""

    label: str
    rows: pd.DataFrame
    look: dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """What to draw: `levels` (finetuned, pretrained) are rows whose mean is a horizontal line."""

    curves: list[Curve]
    x: str
    x_label: str
    y_label: str
    panels: dict[str, str]
    levels: dict[str, pd.DataFrame] = field(default_factory=dict)
    logarithmic: bool = True
    mean: bool = True
    measure: str = "score"
    scale: float = 100.0


def curves_figure(chart: Chart, title: str, details: str, caption: str) -> Figure:
    """The panels of `chart.panels` (value of the column `panel` -> title), then the mean over them where there are several."""
    names = [*chart.panels, *([MEAN] if chart.mean and len(chart.panels) > 1 else [])]
    rows, columns = grid(len(names))
    entries = [*map(words, chart.levels), *(curve.label for curve in chart.curves)]
    drawn = framed(PANEL_HEIGHT * rows, title, details, caption, entries)
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True)
    for place, panel in enumerate(panels.flat):
        if place >= len(names):
            panel.set_axis_off()
            continue
        _draw_panel(panel, chart, names[place])
        panel.tick_params(labelbottom=True)
        if place + columns >= len(names):
            panel.set_xlabel(chart.x_label)
        if place % columns == 0:
            panel.set_ylabel(chart.y_label)
    explain(drawn, panels.flat)
    return drawn


def averages(rows: pd.DataFrame, x: str, measure: str) -> pd.DataFrame:
    """x, mean, sd, n: over seeds, of each seed's mean over what else is in the rows (tasks, test sets)."""
    by_seed = rows.groupby([x, "seed"], sort=True)[measure].mean().dropna()
    found = by_seed.groupby(level=0).agg(["mean", "std", "count"]).reset_index()
    return found.set_axis([x, "mean", "sd", "n"], axis=1)


def _draw_panel(panel: Axes, chart: Chart, name: str) -> None:
    choose: Callable[[pd.DataFrame], pd.DataFrame] = (
        (lambda rows: rows[rows.panel.isin(chart.panels)]) if name == MEAN else (lambda rows: rows[rows.panel == name])
    )
    for variant, rows in chart.levels.items():
        level = choose(rows)[chart.measure].mean()
        panel.axhline(100 * level, label=words(variant), **LEVELS[variant])
    for curve in chart.curves:
        means = averages(choose(curve.rows), chart.x, chart.measure)
        if len(means):
            panel.errorbar(
                chart.scale * means[chart.x], 100 * means["mean"], 100 * means["sd"].fillna(0),
                label=curve.label, capsize=2.5, elinewidth=0.9, **curve.look,
            )  # fmt: skip
    panel.set_title(MEAN if name == MEAN else wrapped(chart.panels[name], 26))
    if chart.logarithmic:
        _logarithmic(panel, chart)


def _logarithmic(panel: Axes, chart: Chart) -> None:
    panel.set_xscale("log")
    values = sorted({chart.scale * value for curve in chart.curves for value in curve.rows[chart.x].dropna().round(9)})
    if not values:
        return
    panel.set_xlim(values[0] / 1.6, values[-1] * 1.6)
    decades = [10.0**power for power in range(-6, 3) if values[0] / 1.6 <= 10.0**power <= values[-1] * 1.6]
    panel.xaxis.set_major_locator(FixedLocator(decades or [values[0]]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
