"""How figures look: one colour and one pattern for each variant, distinguishable without colour too.

The colours are those of Okabe and Ito (2008), which people with colour-blindness can tell apart, and
a grey; hatches, markers and dashes say the same once more, for a print without colour.
"""

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from stages.lib.artifacts import replacing
from stages.lib.measure.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED

COLORS = {PRETRAINED: "#C8C8C8", FINETUNED: "#0072B2", MOVEMENT_GRAFTED: "#E69F00", GRAFTED: "#009E73"}
HATCHES = {PRETRAINED: "", FINETUNED: "", MOVEMENT_GRAFTED: "///", GRAFTED: "xx"}
LINES: dict[str, dict[str, Any]] = {
    PRETRAINED: {"color": "#777777", "linestyle": ":", "linewidth": 1.2, "marker": "", "zorder": 2},
    FINETUNED: {"color": COLORS[FINETUNED], "linestyle": "-", "linewidth": 1.8, "marker": "o", "zorder": 3},
    GRAFTED: {"color": COLORS[GRAFTED], "linestyle": "--", "linewidth": 1.8, "marker": "s", "markerfacecolor": "white", "zorder": 4},
}
WIDTH = 9.0
DPI = 150
SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "figure.constrained_layout.h_pad": 0.08,
}
CHARACTERS_PER_INCH = 11.5


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw with these settings, whatever the user's own matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def figure(height: float, title: str, details: str, caption: str) -> Figure:
    """An empty figure with a title that says what to see, details below it, and a caption at the foot."""
    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    width = int(WIDTH * CHARACTERS_PER_INCH)
    head = "\n".join([*textwrap.wrap(title, width), *textwrap.wrap(details, width)])
    drawn.suptitle(head, x=0.01, ha="left", fontsize=12)
    drawn.supxlabel("\n".join(textwrap.wrap(caption, width)), x=0.01, ha="left", fontsize=10, color="#333333")
    return drawn


def bar_look(variant: str) -> dict[str, Any]:
    """Colour, edge and hatch of a bar."""
    return {"color": COLORS[variant], "hatch": HATCHES[variant], "edgecolor": "black", "linewidth": 0.6}


def wrapped(name: str, width: int = 12) -> str:
    """A name broken into lines, after underscores where it can be, so that it fits below its bars."""
    lines = textwrap.wrap(name.replace("_", "_ "), width, break_long_words=True, break_on_hyphens=False)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def save(drawn: Figure, path: Path) -> None:
    """Write a PNG; equal figures give equal bytes, since neither date nor version is in it."""
    with replacing(path) as partial:
        drawn.savefig(partial, format="png", dpi=DPI, metadata={"Software": None})
