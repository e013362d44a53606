"""One mask as a picture: its share in each layer and in each kind of module, against chance."""

from pathlib import Path
from typing import Any

import pandas as pd

from ..io import replacing
from ..words import small_percent
from .format import made, most
from .locations import free

MASK, CHANCE = "this mask", "chance: what a random mask has"
COLOUR = "#009E73"


def draw(facts: dict[str, Any], target: Path) -> None:
    """Write a PNG of what `inspect_mask` found; raises StorageError if something is at `target`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target, sentence = free(target, for_file=True), most(facts)
    layers, kinds = (pd.DataFrame(facts[name]) for name in ("layers", "kinds"))
    layers["layer"] = ["outside" if row["layer"] is None else str(row["layer"] + 1) for row in facts["layers"]]
    figure = Figure(figsize=(9, 3.4 + 0.27 * len(kinds)), dpi=150, layout="constrained")
    share = f"{small_percent(facts['sparsity'])} of {facts['graftable']:,} graftable"
    title = f"Mask for {', '.join(facts['tasks'])}: {sentence[0].lower()}{sentence[1:]}"
    figure.suptitle(f"{title}\n{facts['model']}{made(facts)}, {share}", x=0.01, ha="left", fontsize=11, wrap=True)
    above, below = figure.subplots(2, 1, height_ratios=[2, 0.27 * len(kinds) + 0.4])
    above.bar(layers.layer, 100 * layers.share, color=COLOUR, label=MASK)
    above.plot(layers.layer, 100 * layers.chance, "_", color="black", markersize=16, markeredgewidth=2, label=CHANCE)
    above.set(xlabel="layer", ylabel="share of mask (%)")
    below.barh(kinds.kind, 100 * kinds.share, color=COLOUR)
    below.plot(100 * kinds.chance, kinds.kind, "|", color="black", markersize=14, markeredgewidth=2)
    below.set(xlabel="share of mask (%)")
    below.invert_yaxis()
    above.legend(frameon=False, loc="upper right")
    for panel in (above, below):
        panel.spines[["top", "right"]].set_visible(False)
    with replacing(target) as partial:
        FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})
