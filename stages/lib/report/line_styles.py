"""Colours, markers and dashes of the study's lines, and figures with a legend of several rows.

Every line has a colour (Okabe and Ito), a marker and a dash of its own, so that it can be told without colour.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..metrics.variants import FINETUNED, PRETRAINED
from .style import figure, legend

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
# these look the same in every figure; movement and what is learned have the colours that they have as bars
LOCALIZERS = ("learned", "attribution", "grown", "fish", "movement", "bias", "random", "doubling")
LEVELS: dict[str, dict[str, Any]] = {
    FINETUNED: {"color": "black", "linewidth": 1.3, "linestyle": "-", "zorder": 1.5},
    PRETRAINED: {"color": "#777777", "linewidth": 1.3, "linestyle": (0, (1, 1.5)), "zorder": 1.5},
}
# of the width of a figure, and what the sample of a line takes of it
LEGEND_CHARACTERS, HANDLE_CHARACTERS = 92, 8
MOST_PER_ROW = 5


def line_style(number: int) -> dict[str, Any]:
    """Look of the line with this number; they repeat after nine."""
    color, marker, dash, filled = LINE_STYLES[number % len(LINE_STYLES)]
    look = {"color": color, "marker": marker, "linestyle": dash, "linewidth": 1.5, "markersize": 6, "zorder": 3}
    return look | {"markeredgecolor": color, "markerfacecolor": color if filled else "white"}


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A look for each name: of a localizer its own, of others by their place among those that are free."""
    names = [*names]
    own = {name: LOCALIZERS.index(name) for name in names if name in LOCALIZERS}
    free = itertools.chain((n for n in range(len(LINE_STYLES)) if n not in own.values()), itertools.count())
    return {name: line_style(own[name] if name in own else next(free)) for name in names}


def framed(panels_height: float, title: str, details: str, caption: str, entries: list[str]) -> Figure:
    """As `style.figure`, with room for a legend of these labels in as many rows as it takes."""
    return figure(panels_height, title, details, caption, math.ceil(len(entries) / _per_row(entries)))


def explain(drawn: Figure, panels: Iterable[Axes]) -> None:
    """As `style.legend`, in as many rows as it takes."""
    legend(drawn, *panels, columns=_per_row, labelspacing=0.25, columnspacing=1.4)


def _per_row(labels: list[str]) -> int:
    """Number of labels as long as the longest that fit beside each other."""
    width = LEGEND_CHARACTERS // (max(map(len, labels), default=1) + HANDLE_CHARACTERS)
    return max(min(width, MOST_PER_ROW, len(labels)), 1)


def grid(panels: int) -> tuple[int, int]:
    """Rows and columns for this many panels."""
    columns = 4 if panels > 9 else 2 if panels == 4 else min(3, panels)
    return math.ceil(panels / columns), columns


def small_multiples(
    drawn: Figure, shown: Sequence[Any], columns: int | None = None, **sharing: bool
) -> Iterator[tuple[Axes, Any, bool, bool]]:
    """A panel for each, by columns or as in `grid`: it, what it is for, if first in its row, last in its column."""
    columns = columns or grid(len(shown))[1]
    panels = [*drawn.subplots(math.ceil(len(shown) / columns), columns, squeeze=False, **sharing).flat]
    for place, (panel, one) in enumerate(zip(panels, shown, strict=False)):
        yield panel, one, place % columns == 0, place + columns >= len(shown)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
