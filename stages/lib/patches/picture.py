"""One mask as a picture: its share in each layer and in each kind of module, against chance."""

from pathlib import Path
from typing import Any

import pandas as pd

from ..metrics.composition import OUTSIDE
from ..report.format import small_percent
from ..report.line_styles import explain, framed
from ..report.mask_panels import CHANCE, KIND_HEIGHT, SHARE, draw_kinds, draw_layers
from ..report.style import save, styled
from .format import made, most
from .locations import free

MASK = "this mask"
CAPTION = "Chance: what a random mask has, of whatever size."
LAYERS_HEIGHT = 2.2


def draw(facts: dict[str, Any], target: Path) -> None:
    """Write a PNG of what `inspect_mask` found; raises StorageError if something is at `target`."""
    target, sentence = free(target, for_file=True), most(facts)
    title = f"Mask for {', '.join(facts['tasks'])}: {sentence[0].lower()}{sentence[1:]}"
    share = f"{small_percent(facts['sparsity'])} of {facts['graftable']:,} graftable"
    layers, kinds = (pd.DataFrame(facts[name]) for name in ("layers", "kinds"))
    layers["layer"] = [OUTSIDE if row["layer"] is None else row["layer"] for row in facts["layers"]]
    with styled():
        height = LAYERS_HEIGHT + 0.75 + KIND_HEIGHT * len(kinds)
        drawn = framed(height, title, f"{facts['model']}{made(facts)}, {share}", CAPTION, [CHANCE, MASK])
        above, below = drawn.subplots(2, 1, height_ratios=[LAYERS_HEIGHT, height - LAYERS_HEIGHT])
        draw_layers(above, layers, MASK)
        above.set(xlabel="layer", ylabel=SHARE)
        draw_kinds(below, kinds, MASK)
        below.set_xlabel(SHARE)
        explain(drawn, [above])
        save(drawn, target)
