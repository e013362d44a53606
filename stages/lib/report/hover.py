"""Places of values in a figure, so that the page can show the one under the pointer; stored in the PNG itself."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer, Container, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

KEY = "Values"
MOST = 2000
NUMBER = re.compile(r"[\d.,\-−+%× ]*|\$.*\$")
# a place in data coordinates, the name of what is drawn there, and the value where the axes don't have it
Mark = tuple[float, float, str, float | None]


def values_of(drawn: Figure) -> str:
    """JSON of [x, y, text] for every point, bar and cell; x and y are shares of the width and height from the upper left."""
    drawn.draw_without_rendering()  # places are known only then, and stay as they are
    drawn.set_layout_engine("none")
    found = []
    for panel in drawn.axes:
        across_in_words, up_in_words = _in_words(panel.xaxis), _in_words(panel.yaxis)
        for x, y, name, value in _marks(panel):
            across, up = drawn.transFigure.inverted().transform(panel.transData.transform((x, y)))
            if 0 <= across <= 1 and 0 <= up <= 1:
                text = _text(panel.get_title(), name, across_in_words(x), up_in_words(y), value)
                found.append([round(float(across), 4), round(float(1 - up), 4), text])
    return json.dumps(found[:MOST], ensure_ascii=False)


def read_values(path: Path) -> list[Any]:
    """The values that values_of stored with a PNG; nothing for one without."""
    with Image.open(path) as picture:
        return json.loads(picture.info.get(KEY, "[]"))


def _marks(panel: Axes) -> Iterator[Mark]:
    whiskers = []
    for container in panel.containers:
        if isinstance(container, ErrorbarContainer):
            whiskers += [container.lines[0], *container.lines[1]]
            yield from _points(container.lines[0], _named(container))
        elif isinstance(container, BarContainer):
            for bar in container:
                (left, low), (right, high) = bar.get_bbox().get_points()
                place = ((left + right) / 2, high) if container.orientation == "vertical" else (right, (low + high) / 2)
                yield *place, _named(container), None
    for line in panel.lines:
        if line not in whiskers and line.get_transform() == panel.transData:
            yield from _points(line, _named(line))
    for points in panel.collections:
        name = _named(points)
        if hasattr(points, "get_coordinates"):
            corners, values = points.get_coordinates(), points.get_array().ravel()
            centres = ((corners[:-1, :-1] + corners[1:, 1:]) / 2).reshape(-1, 2)
            yield from ((x, y, name, value) for (x, y), value in zip(centres, values, strict=True))
        elif len(points.get_offsets()) and points.get_offset_transform() == panel.transData:
            yield from ((x, y, name, None) for x, y in np.ma.filled(points.get_offsets(), np.nan))
    for image in panel.images:
        if image.get_array().ndim == 2:
            cells = np.ndenumerate(image.get_array().filled(np.nan))
            yield from ((column, row, "", value) for (row, column), value in cells)


def _points(line: Line2D | None, name: str) -> Iterator[Mark]:
    if line is not None and len(line.get_xdata()) < MOST:
        yield from ((x, y, name, None) for x, y in np.asarray(line.get_xydata(), dtype=float))


def _named(artist: Artist | Container) -> str:
    """Its name in the legend; matplotlib's own names start with an underscore."""
    name = str(artist.get_label() or "")
    return "" if name.startswith("_") else name


def _text(title: str, name: str, across: str, up: str, value: float | None) -> str:
    parts = [title, name, across, up, "" if value is None else f"{value:.4g}"]
    return ", ".join(" ".join(part.split()) for part in parts if part)


def _in_words(axis: Axis) -> Callable[[float], str]:
    """Says where something is on an axis: the nearest tick's words, or the number with the axis's label."""
    words, ticks = [tick.get_text() for tick in axis.get_ticklabels()], np.asarray(axis.get_ticklocs())
    if len(ticks) and len(words) == len(ticks) and not all(map(NUMBER.fullmatch, words)):
        return lambda place: words[int(np.argmin(np.abs(ticks - place)))]
    label = axis.get_label_text()
    return lambda place: f"{label} {place:.4g}"
