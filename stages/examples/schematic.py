"""schematic: the schematic of grafting at the top of README, for light and dark pages.

python -m stages.examples.schematic        writes plots/schematic_light.svg and plots/schematic_dark.svg
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

SIZE = 8
REGION = ((1, 2), (2, 6), (4, 1), (5, 5), (6, 3))  # row and column of the parameters in the region
PRETRAINED, FINETUNED = "#9aa3ad", "#d9742b"
INK = {"light": "#1c1f23", "dark": "#e8eaed"}
PANELS = ("pretrained", "fine-tuned", "region", "graft")
NOTES = ("knows language", "every parameter moved", "the few that carry the skill", "pretrained, but for the region")


def draw(ink: str) -> Figure:
    """Four grids of parameters, coloured by the model they come from."""
    figure = Figure(figsize=(9, 2.7))
    for place, (name, note) in enumerate(zip(PANELS, NOTES, strict=True)):
        axes = figure.add_axes((0.02 + 0.25 * place, 0.2, 0.2, 0.66))
        _grid(axes, name, ink)
        axes.set_title(name, color=ink, fontsize=12)
        figure.text(0.12 + 0.25 * place, 0.09, note, color=ink, fontsize=9, ha="center")
        if place:
            figure.text(
                0.245 + 0.25 * (place - 1), 0.52, "+→="[place - 1], color=ink, fontsize=18, ha="center", va="center"
            )
    return figure


def _grid(axes: Axes, name: str, ink: str) -> None:
    """A square of parameters, coloured by the model that their values come from."""
    shades = np.random.default_rng(0).uniform(0.45, 1.0, (SIZE, SIZE))
    for (row, column), shade in np.ndenumerate(shades):
        chosen = (row, column) in REGION
        colour = FINETUNED if name == "fine-tuned" or (chosen and name in ("region", "graft")) else PRETRAINED
        empty = name == "region" and not chosen
        look = {"fill": False, "alpha": 0.25} if empty else {"facecolor": colour, "alpha": 1.0 if chosen else shade}
        axes.add_patch(Rectangle((column, row), 0.88, 0.88, edgecolor=ink if empty else "none", linewidth=0.6, **look))
    axes.set(xlim=(-0.1, SIZE), ylim=(SIZE, -0.1), aspect="equal")
    axes.set_axis_off()


def main() -> None:
    """Write both pictures."""
    with matplotlib.rc_context({"svg.hashsalt": "graft", "svg.fonttype": "path"}):
        for theme, ink in INK.items():
            file = Path(f"plots/schematic_{theme}.svg")
            draw(ink).savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
            print(f"schematic: {file}")


if __name__ == "__main__":
    main()
