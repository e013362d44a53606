"""The look of figures: one colour and one pattern for each variant, distinguishable without colour too.

The colours are those of Okabe and Ito (2008), which people with colour-blindness can tell apart, and
a grey; hatches, markers and dashes say the same once more, for a print without colour.
"""

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..io import replacing
from ..metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED
from . import hover

Data = TypeVar("Data")
COLORS = {PRETRAINED: "#C8C8C8", FINETUNED: "#0072B2", MOVEMENT_GRAFTED: "#E69F00", GRAFTED: "#009E73"}
HATCHES = {PRETRAINED: "", FINETUNED: "", MOVEMENT_GRAFTED: "///", GRAFTED: "xx"}
LINES: dict[str, dict[str, Any]] = {
    PRETRAINED: {"color": "#999999", "linewidth": 1.0, "marker": "", "zorder": 2},
    FINETUNED: {"color": COLORS[FINETUNED], "linewidth": 1.4, "marker": "o", "zorder": 3},
    GRAFTED: {"color": COLORS[GRAFTED], "linewidth": 1.4, "linestyle": "--", "marker": "s", "markerfacecolor": "white", "zorder": 4},
}  # fmt: skip
# hatches don't show in narrow bars
NARROW_BARS: dict[str, dict[str, Any]] = {
    FINETUNED: {"facecolor": COLORS[FINETUNED], "edgecolor": COLORS[FINETUNED], "linewidth": 0.8},
    GRAFTED: {"facecolor": "white", "edgecolor": COLORS[GRAFTED], "linewidth": 1.2},
}
WIDTH = 9.0
DPI = 150
SETTINGS = {
    "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 11, "axes.labelsize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#DDDDDD",
    "hatch.linewidth": 0.7, "legend.frameon": False, "legend.handlelength": 2.6,
}  # fmt: skip
CHARACTERS_PER_INCH = 11
# in inches
LINE = 0.22
LEGEND, LEGEND_ROW = 0.44, 0.26
GAP = 0.08
MARGIN = 0.1


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw with these settings, whatever the user's own matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def figure(panels_height: float, title: str, details: str, caption: str, legend_rows: int = 1) -> Figure:
    """An empty figure: a title that says what to see, details and room for a legend below it, a caption at the foot.

    `panels_height` is what is left for the panels, in inches.
    """
    width = int(WIDTH * CHARACTERS_PER_INCH)
    head, below_title, foot = (textwrap.wrap(text, width, break_on_hyphens=False) for text in (title, details, caption))
    head += below_title
    above = MARGIN + LINE * len(head) + LEGEND + LEGEND_ROW * (legend_rows - 1)
    below = 2 * MARGIN + LINE * len(foot)
    height = above + panels_height + below
    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    drawn.get_layout_engine().set(rect=(0, below / height, 1, panels_height / height))
    left, low, look = MARGIN / WIDTH, MARGIN / height, {"linespacing": 1.25}
    drawn.text(left, 1 - low, "\n".join(head), va="top", fontsize=12, **look)
    drawn.text(left, low, "\n".join(foot), va="bottom", fontsize=10, color="#333333", **look)
    return drawn


def legend(drawn: Figure, *panels: Axes, columns: Callable[[list[str]], int] = len, **look: Any) -> None:
    """Explain everything in the panels, each label once, between the title and the panels; `columns`: how many of the labels a row has."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    _, bottom, _, height = drawn.get_layout_engine().get()["rect"]
    place = (MARGIN / WIDTH, bottom + height + GAP / drawn.get_figheight())
    look = {"loc": "lower left", "bbox_to_anchor": place, "borderaxespad": 0, "borderpad": 0.2} | look
    # out of the layout, which has left room for it
    drawn.legend(found.values(), found.keys(), ncols=columns([*found]), **look).set_in_layout(False)


def bar_style(variant: str) -> dict[str, Any]:
    """Colour, edge and hatch of a bar."""
    return {"color": COLORS[variant], "hatch": HATCHES[variant], "edgecolor": "black", "linewidth": 0.6}


def wrapped(name: str, width: int = 12) -> str:
    """A name broken into lines, after underscores where it can be, so that it fits below its bars."""
    lines = textwrap.wrap(name.replace("_", "_ "), width, break_long_words=True, break_on_hyphens=False)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def save(drawn: Figure, path: Path) -> None:
    """Write a PNG with the values drawn; equal figures give equal bytes, since neither date nor version is in it."""
    drawn.set_dpi(DPI)  # first, as the layout is made for the width that letters have then
    metadata = {"Software": None, hover.KEY: hover.values_of(drawn)}
    with replacing(path) as partial:
        # savefig would draw it once more before, for a layout that is made already
        FigureCanvasAgg(drawn).print_png(partial, metadata=metadata)


def save_all(makers: Mapping[str, Callable[[Data], Figure | None]], data: Data, folder: Path) -> None:
    """Draw each figure that there is data for and save it under its name."""
    for name, draw in makers.items():
        with styled():
            drawn = draw(data)
            if drawn is not None:
                save(drawn, folder / f"{name}.png")
