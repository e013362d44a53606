"""Where in the model the parameters of a mask lie: by layer (figure 9) and by kind of module (figure 10)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.composition import KINDS
from stages.lib.metrics.variants import GRAFTED
from stages.lib.report.format import counted, small_percent
from stages.lib.report.line_styles import explain, framed, grid
from stages.lib.report.style import COLORS, HATCHES
from stages.study.report import choosing
from stages.study.report.choosing import LEARNED
from stages.study.report.collecting import Study
from stages.study.report.masks import OUTSIDE

LAYER_HEIGHT = 2.1
KIND_HEIGHT = 0.27
BARS = "Bars: mean over seeds; whiskers: standard deviation over seeds."
CHANCE, MASK = "chance (share of graftable)", "learned mask"


def layer_figure(study: Study) -> Figure | None:
    """Figure 9: share of the learned mask in each layer, per task."""
    shares, size = place_shares(study, "layer")
    if shares.empty:
        return None
    title = "Layers of the learned region (paper: mostly the middle ones)"
    return _figure(study, shares, size, title, draw_layers, LAYER_HEIGHT)


def kind_figure(study: Study) -> Figure | None:
    """Figure 10: share of the learned mask in each kind of module, per task."""
    shares, size = place_shares(study, "kind")
    if shares.empty:
        return None
    title = "Modules of the learned region (paper: attention values, first feed-forward maps, LayerNorm)"
    return _figure(study, shares, size, title, draw_kinds, 0.75 + KIND_HEIGHT * shares.kind.nunique())


def place_shares(study: Study, by: str) -> tuple[pd.DataFrame, float | None]:
    """task, seed, `by`, share, chance of learned masks at the size nearest the paper's; and that size."""
    frame = study.frames["composition"]
    frame = frame[frame.localizer == LEARNED]
    size = choosing.nearest(choosing.sparsities(frame))
    frame = frame[frame.sparsity == size]
    return frame.groupby(["task", "seed", by], sort=False)[["share", "chance"]].sum().reset_index(), size


def _figure(study: Study, shares: pd.DataFrame, size: float, title: str, draw: object, height: float) -> Figure:
    tasks = [task for task in study.tasks if task in {*shares.task}]
    rows, columns = grid(len(tasks))
    details = f"{counted(len(tasks), 'task')}, {counted(shares.seed.nunique(), 'seed')}, learned masks of {small_percent(size)}"
    drawn = framed(height * rows, title, details, BARS, [CHANCE, MASK])
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(panels.flat):
        if place >= len(tasks):
            panel.set_axis_off()
            continue
        draw(panel, shares[shares.task == tasks[place]], first=place % columns == 0, last=place + columns >= len(tasks))
        panel.set_title(tasks[place])
        panel.tick_params(labelbottom=True)
    explain(drawn, panels.flat[:1])
    return drawn


def draw_layers(panel: Axes, shares: pd.DataFrame, first: bool, last: bool, label: str = MASK) -> None:
    """Bars of `shares` (layer, share, chance; a row for each seed), upright; `label` is theirs in the legend."""
    found = _means(shares, "layer", sorted(shares.layer.unique()))
    places = np.arange(len(found))
    _bars(panel, places, found, label, upright=True)
    panel.step(
        places, 100 * found.chance, where="mid", color="black", linewidth=1.4, linestyle=(0, (4, 2)), label=CHANCE
    )
    every = max(len(found) // 6, 1)
    names = ["outside" if layer == OUTSIDE else str(layer + 1) for layer in found.index]
    panel.set_xticks(places[::every], names[::every])
    if last:
        panel.set_xlabel("layer")
    if first:
        panel.set_ylabel("share of mask (%)")


def draw_kinds(panel: Axes, shares: pd.DataFrame, first: bool, last: bool, label: str = MASK) -> None:
    """The same by kind of module, lying."""
    found = _means(shares, "kind", [kind for kind in KINDS if kind in {*shares.kind}])
    places = np.arange(len(found))
    _bars(panel, places, found, label, upright=False)
    panel.scatter(100 * found.chance, places, marker="|", s=150, color="black", linewidth=2.2, zorder=4, label=CHANCE)
    panel.grid(axis="x")
    panel.grid(visible=False, axis="y")
    panel.set_yticks(places, found.index)
    panel.set_ylim(len(found) - 0.45, -0.55)
    panel.tick_params(axis="y", length=0)
    if last:
        panel.set_xlabel("share of mask (%)")


def _bars(panel: Axes, places: np.ndarray, found: pd.DataFrame, label: str, upright: bool) -> None:
    look = {"color": COLORS[GRAFTED], "hatch": HATCHES[GRAFTED], "edgecolor": "black", "linewidth": 0.6, "label": label}
    whiskers = {"capsize": 2, "error_kw": {"elinewidth": 1.0}}
    error = 100 * found.sd.fillna(0)
    if upright:
        panel.bar(places, 100 * found.share, 0.8, yerr=error, **look, **whiskers)
    else:
        panel.barh(places, 100 * found.share, 0.75, xerr=error, **look, **whiskers)


def _means(shares: pd.DataFrame, by: str, order: list) -> pd.DataFrame:
    groups = shares.groupby(by)
    found = pd.DataFrame({"share": groups.share.mean(), "sd": groups.share.std(ddof=1), "chance": groups.chance.mean()})
    return found.loc[order]
