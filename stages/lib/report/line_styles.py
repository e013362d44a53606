"""Colours, markers and dashes of the study's lines, and figures with a legend of several rows.

Every line has a colour (Okabe and Ito), a marker and a dash of its own, so that it can be told
without colour.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.style import GAP, MARGIN, WIDTH, figure

DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.5)), (0, (6, 2, 1.2, 2)), (0, (3, 1.2)), (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)))
LINE_STYLES: tuple[tuple[str, str, Any, bool], ...] = (
    ("#009E73", "s", DASHES[0], True),
    ("#CC79A7", "^", DASHES[1], False),
    ("#0072B2", "D", DASHES[3], True),
    ("#56B4E9", "P", DASHES[2], True),
    ("#E69F00", "o", DASHES[1], True),
    ("#D55E00", "v", DASHES[3], False),
    ("#B8A800", "X", DASHES[4], True),
    ("#444444", "*", DASHES[2], False),
    ("#8A8A8A", "o", DASHES[2], False),
)
LEVELS: dict[str, dict[str, Any]] = {
    FINETUNED: {"color": "black", "linewidth": 1.3, "linestyle": "-", "zorder": 1.5},
    PRETRAINED: {"color": "#777777", "linewidth": 1.3, "linestyle": (0, (1, 1.5)), "zorder": 1.5},
}
LEGEND_ROW = 0.26
# of the width of a figure, and what the sample of a line takes of it
LEGEND_CHARACTERS, HANDLE_CHARACTERS = 92, 8
MOST_PER_ROW = 5


def line_style(number: int) -> dict[str, Any]:
    """Look of the line with this number; they repeat after nine."""
    color, marker, dash, filled = LINE_STYLES[number % len(LINE_STYLES)]
    return {
        "color": color,
        "marker": marker,
        "linestyle": dash,
        "linewidth": 1.5,
        "markersize": 6,
        "markeredgecolor": color,
        "markerfacecolor": color if filled else "white",
        "zorder": 3,
    }


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A look for each name, by its place."""
    return {name: line_style(number) for number, name in enumerate(names)}


def framed(panels_height: float, title: str, details: str, caption: str, entries: list[str]) -> Figure:
    """As `style.figure`, with room for a legend of these labels in as many rows as it takes."""
    extra = LEGEND_ROW * max(math.ceil(len(entries) / _per_row(entries)) - 1, 0)
    drawn = figure(panels_height + extra, title, details, caption)
    left, bottom, width, height = drawn.get_layout_engine().get()["rect"]
    drawn.get_layout_engine().set(rect=(left, bottom, width, height - extra / drawn.get_figheight()))
    return drawn


def explain(drawn: Figure, panels: Iterable[Axes]) -> None:
    """A legend of everything in the panels, each label once, between the title and the panels."""
    found = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    _, bottom, _, height = drawn.get_layout_engine().get()["rect"]
    place = (MARGIN / WIDTH, bottom + height + GAP / drawn.get_figheight())
    # out of the layout, which has left room for it
    drawn.legend(
        found.values(), found.keys(), loc="lower left", bbox_to_anchor=place, ncols=_per_row([*found]),
        borderaxespad=0, borderpad=0.2, labelspacing=0.25, columnspacing=1.4,
    ).set_in_layout(False)  # fmt: skip


def _per_row(labels: list[str]) -> int:
    """Number of labels as long as the longest that fit beside each other."""
    width = LEGEND_CHARACTERS // (max(map(len, labels), default=1) + HANDLE_CHARACTERS)
    return max(min(width, MOST_PER_ROW, len(labels)), 1)


def grid(panels: int) -> tuple[int, int]:
    """Rows and columns for this many panels."""
    columns = 4 if panels > 9 else 2 if panels == 4 else min(3, panels)
    return math.ceil(panels / columns), columns


def small_multiples(
    drawn: Figure, names: Sequence[str], draw: Callable[[Axes, str, bool, bool], None], **sharing: bool
) -> list[Axes]:
    """A panel for each name, in the rows and columns of `grid`; gives all of them.

    `draw` gets the panel, its name, and whether it stands first in its row and last in its column.
    """
    rows, columns = grid(len(names))
    panels = [*drawn.subplots(rows, columns, squeeze=False, **sharing).flat]
    for place, panel in enumerate(panels):
        if place < len(names):
            draw(panel, names[place], place % columns == 0, place + columns >= len(names))
        else:
            panel.set_axis_off()
    return panels
