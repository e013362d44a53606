"""Small multiples, one panel for each task: reliability diagrams and histograms of confidence."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.measure.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.style import LINES, bar_look, figure
from stages.lib.report.wording import words

FRAME_HEIGHT = 2.0
MARKER = 5.5


def reliability_figure(bins: pd.DataFrame, number: int, titles: dict[str, str], title: str, details: str, caption: str) -> Figure:
    """Accuracy against confidence for each task, with the share of test rows in each of `number` bins below it.

    `bins` has the columns of `pooled_bins`, `titles` the title of each task's panel.
    """
    rows, columns = _grid(len(titles))
    drawn = figure(FRAME_HEIGHT + 3.4 * rows, title, details, caption)
    panels = drawn.subplots(2 * rows, columns, squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1] * rows)
    for place in range(rows * columns):
        diagram, strip = panels[2 * (place // columns) : 2 * (place // columns) + 2, place % columns]
        if place >= len(titles):
            diagram.set_axis_off()
            strip.set_axis_off()
            continue
        task = list(titles)[place]
        _draw_diagram(diagram, bins[bins.task == task], titles[task])
        _draw_counts(strip, bins[bins.task == task], number)
        strip.tick_params(labelbottom=True)
        strip.set_xlabel("confidence (%)")
        if place % columns == 0:
            diagram.set_ylabel("accuracy (%)")
            strip.set_ylabel("rows (%)")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return drawn


def confidence_figure(bars: pd.DataFrame, titles: dict[str, str], title: str, details: str, caption: str) -> Figure:
    """Histogram of the top probability for each task; `bars` has the columns of `pooled_bars`."""
    rows, columns = _grid(len(titles))
    drawn = figure(FRAME_HEIGHT + 2.4 * rows, title, details, caption)
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(panels.flat):
        if place >= len(titles):
            panel.set_axis_off()
            continue
        task = list(titles)[place]
        _draw_histogram(panel, bars[bars.task == task], titles[task])
        panel.set_xlabel("top probability (%)")
        panel.tick_params(labelbottom=True)
        if place % columns == 0:
            panel.set_ylabel("rows (%)")
    panels[0, 0].set_xlim(_least(bars), 101)
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return drawn


def _grid(panels: int) -> tuple[int, int]:
    columns = min(panels, 4 if panels == 4 or panels > 6 else 3)
    return math.ceil(panels / columns), columns


def _draw_diagram(panel: Axes, bins: pd.DataFrame, title: str) -> None:
    panel.plot([0, 100], [0, 100], color="black", linewidth=0.8, linestyle=(0, (1, 2)), label="perfect calibration", zorder=1)
    for variant in (PRETRAINED, FINETUNED, GRAFTED):
        own = bins[(bins.variant == variant) & (bins["count"] > 0)]
        panel.plot(100 * own.confidence, 100 * own.accuracy, label=words(variant), markersize=MARKER, **LINES[variant])
    panel.set_title(title)
    panel.set(xlim=(0, 102), ylim=(0, 102), xticks=[0, 50, 100], yticks=[0, 25, 50, 75, 100])


def _draw_counts(panel: Axes, bins: pd.DataFrame, number: int) -> None:
    width = 100 / number
    for side, variant in enumerate((FINETUNED, GRAFTED)):
        own = bins[bins.variant == variant]
        shares = 100 * own["count"] / max(own["count"].sum(), 1)
        panel.bar(own.bin * width + (side + 0.5) * width / 2, shares, width / 2, **bar_look(variant))
    panel.set_ylim(0, 100)
    panel.set_yticks([0, 100])


def _draw_histogram(panel: Axes, bars: pd.DataFrame, title: str) -> None:
    for side, variant in enumerate((FINETUNED, GRAFTED)):
        own = bars[bars.variant == variant]
        width = 100 * (own.high - own.low) / 2
        panel.bar(100 * own.low + (side + 0.5) * width, 100 * own.share, width, label=words(variant), **bar_look(variant))
    panel.set_title(title)


def _least(bars: pd.DataFrame) -> float:
    """Where the axis begins, in %: no top probability is below one in the number of labels."""
    occupied = bars.loc[bars["count"] > 0, "low"]
    return float(np.floor(10 * occupied.min()) * 10) if len(occupied) else 0.0
