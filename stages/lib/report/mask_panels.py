"""Where in the model the parameters of a mask lie, as bars: by layer (figure 9) and by kind of module (figure 10)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..metrics.composition import KINDS, OUTSIDE
from ..metrics.variants import GRAFTED
from .style import bar_style

CHANCE = "chance (share of graftable)"
SHARE = "share of mask (%)"
KIND_HEIGHT = 0.27
BARS: dict[str, Any] = {**bar_style(GRAFTED), "capsize": 2, "error_kw": {"elinewidth": 1.0}}


def draw_layers(panel: Axes, shares: pd.DataFrame, label: str) -> None:
    """Upright bars of where a mask lies (layer, share, chance; a row for each seed); `label` is theirs in the legend."""
    means = _means(shares, "layer", sorted(shares.layer.unique()))
    places = np.arange(len(means))
    panel.bar(places, 100 * means.share, 0.8, yerr=_whiskers(means), label=label, **BARS)
    line = {"color": "black", "linewidth": 1.4, "linestyle": (0, (4, 2))}
    panel.stairs(100 * means.chance, np.arange(len(means) + 1) - 0.5, baseline=None, label=CHANCE, **line)
    every = max(len(means) // 6, 1)
    names = ["outside" if layer == OUTSIDE else str(layer + 1) for layer in means.index]
    panel.set_xticks(places[::every], names[::every])


def draw_kinds(panel: Axes, shares: pd.DataFrame, label: str) -> None:
    """Lying bars of the same by kind of module."""
    means = _means(shares, "kind", [kind for kind in KINDS if kind in {*shares.kind}])
    places = np.arange(len(means))
    panel.barh(places, 100 * means.share, 0.75, xerr=_whiskers(means), label=label, **BARS)
    panel.scatter(100 * means.chance, places, marker="|", s=150, color="black", linewidth=2.2, zorder=4, label=CHANCE)
    panel.grid(axis="x")
    panel.grid(visible=False, axis="y")
    panel.set_yticks(places, means.index)
    panel.set_ylim(len(means) - 0.45, -0.55)
    panel.tick_params(axis="y", length=0)


def _whiskers(means: pd.DataFrame) -> pd.Series | None:
    """Deviations over seeds; one seed has none."""
    return 100 * means.sd.fillna(0) if means.sd.notna().any() else None


def _means(shares: pd.DataFrame, by: str, order: list[Any]) -> pd.DataFrame:
    groups = shares.groupby(by)
    means = pd.DataFrame({"share": groups.share.mean(), "sd": groups.share.std(ddof=1), "chance": groups.chance.mean()})
    return means.loc[order]
