"""Small multiples, one panel for each task: reliability diagrams and histograms of confidence."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import words
from stages.lib.report.style import LINES, NARROW_BARS, figure, legend

DIAGRAM_HEIGHT = 3.3
HISTOGRAM_HEIGHT = 2.3
# the accuracy of fewer rows than this is not drawn: it is hardly more than chance
FEWEST_ROWS = 10
# points across, for a bin with hardly any rows and for one with all of them
SMALLEST_MARKER, LARGEST_MARKER = 2.0, 9.0


def reliability_figure(
    bins: pd.DataFrame, number: int, titles: dict[str, str], title: str, details: str, caption: str
) -> Figure:
    """Accuracy against confidence for each task, with the share of test rows in each of `number` bins below it.

    `bins` has the columns of `pooled_bins`, `titles` the title of each task's panel.
    """
    rows, columns = _grid(len(titles))
    drawn = figure(DIAGRAM_HEIGHT * rows, title, details, caption)
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
    legend(drawn, panels[0, 0])
    return drawn


def confidence_figure(bars: pd.DataFrame, titles: dict[str, str], title: str, details: str, caption: str) -> Figure:
    """Histogram of the top probability for each task; `bars` has the columns of `pooled_bars`."""
    rows, columns = _grid(len(titles))
    drawn = figure(HISTOGRAM_HEIGHT * rows, title, details, caption)
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
    legend(drawn, panels[0, 0])
    return drawn


def _grid(panels: int) -> tuple[int, int]:
    columns = 4 if panels == 4 or panels > 6 else 3
    return math.ceil(panels / columns), columns


def _draw_diagram(panel: Axes, bins: pd.DataFrame, title: str) -> None:
    panel.plot(
        [0, 100], [0, 100], color="black", linewidth=0.8, linestyle=(0, (1, 2)), label="perfect calibration", zorder=1
    )
    for variant in (PRETRAINED, FINETUNED, GRAFTED):
        own = bins[(bins.variant == variant) & (bins["count"] >= FEWEST_ROWS)]
        _draw_line(panel, 100 * own.confidence, 100 * own.accuracy, own["count"] / max(own["count"].sum(), 1), variant)
    panel.set_title(title)
    panel.set(xlim=(0, 104), ylim=(0, 104), xticks=[0, 50, 100], yticks=[0, 25, 50, 75, 100])


def _draw_line(panel: Axes, confidence: pd.Series, accuracy: pd.Series, shares: pd.Series, variant: str) -> None:
    """A line through the bins, with markers as large as the bins have rows: small ones are mostly chance."""
    look = LINES[variant]
    panel.plot(confidence, accuracy, **{**look, "marker": ""})
    if look["marker"]:
        sizes = SMALLEST_MARKER + (LARGEST_MARKER - SMALLEST_MARKER) * np.sqrt(shares)
        colors = {"facecolor": look.get("markerfacecolor", look["color"]), "edgecolor": look["color"]}
        panel.scatter(
            confidence, accuracy, s=sizes**2, marker=look["marker"], zorder=look["zorder"], clip_on=False, **colors
        )
    panel.plot([], [], label=words(variant), markersize=(SMALLEST_MARKER + LARGEST_MARKER) / 2, **look)


def _draw_counts(panel: Axes, bins: pd.DataFrame, number: int) -> None:
    width = 100 / number
    for side, variant in enumerate((FINETUNED, GRAFTED)):
        own = bins[bins.variant == variant]
        shares = 100 * own["count"] / max(own["count"].sum(), 1)
        panel.bar(own.bin * width + (side + 0.5) * width / 2, shares, width / 2, **NARROW_BARS[variant])
    panel.set_ylim(0, 100)
    panel.set_yticks([0, 100])


def _draw_histogram(panel: Axes, bars: pd.DataFrame, title: str) -> None:
    for side, variant in enumerate((FINETUNED, GRAFTED)):
        own = bars[bars.variant == variant]
        width = 100 * (own.high - own.low) / 2
        panel.bar(
            100 * own.low + (side + 0.5) * width, 100 * own.share, width, label=words(variant), **NARROW_BARS[variant]
        )
    panel.set_title(title)


def _least(bars: pd.DataFrame) -> float:
    """Where the axis begins, in %: no top probability is below one in the number of labels."""
    occupied = bars.loc[bars["count"] > 0, "low"]
    return float(np.floor(10 * occupied.min()) * 10) if len(occupied) else 0.0
