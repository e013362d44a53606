"""Figures of one measure against another: in against out of distribution, and score kept against cost."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.format import small_percent, words
from stages.lib.report.line_styles import explain, framed, grid, line_styles
from stages.study.report import choosing
from stages.study.report.choosing import LEARNED
from stages.study.report.collecting import Study
from stages.study.report.curve_figures import details

HEIGHT = 3.4
POINTS: dict[str, dict[str, Any]] = {
    FINETUNED: {"color": "black", "marker": "*", "markersize": 13, "linestyle": "", "zorder": 5},
    PRETRAINED: {"color": "#777777", "marker": "X", "markersize": 9, "linestyle": "", "zorder": 5},
}


def tradeoff_figure(study: Study) -> Figure | None:
    """Figure 7, second part: score on other test sets against that on the own one, for WiSE and grafts by size."""
    paths = _paths(study)
    shown = [
        task for task in study.tasks if any(task in {*rows.task[rows["where"] == "ood"]} for rows, _ in paths.values())
    ]
    if not shown:
        return None
    per_task = {
        task: {name: _points(rows[rows.task == task], by) for name, (rows, by) in paths.items()} for task in shown
    }
    rows, columns = grid(len(shown))
    title = "In and out of distribution: further up and to the right is better"
    caption = (
        "OOD: mean over the task's other test sets. Points: means over seeds; whiskers: standard deviation over seeds. "
    )
    caption += "Lines run from little to much of the fine-tuned model: WiSE by its weight alpha, grafts by their size."
    stage = "anchor" if len(study.rows("anchor")) else "sweep"
    drawn = framed(HEIGHT * rows, title, details(study, stage), caption, [*paths])
    panels = drawn.subplots(rows, columns, squeeze=False)
    for place, panel in enumerate(panels.flat):
        if place >= len(shown):
            panel.set_axis_off()
            continue
        _draw_paths(panel, per_task[shown[place]], choosing.named(study, shown[place]))
        if place % columns == 0:
            panel.set_ylabel("out of distribution (%)")
    explain(drawn, panels.flat)
    return drawn


def cost_points(study: Study) -> pd.DataFrame:
    """localizer, sparsity, n, examples, seconds, retained, retained_sd: means over cells, common sizes only."""
    cost = study.frames["cost"]
    rows = []
    for sparsity in choosing.common_sparsities(study):
        for name in choosing.localizers(study):
            kept = choosing.by_cell(choosing.sweep(study, name, sparsity), "retained").dropna()
            own = cost[(cost.localizer == name) & (cost.sparsity == sparsity)]
            numbers = {
                "examples": own.gradient_examples.astype(float).mean(),
                "seconds": own.seconds.astype(float).mean(),
            }
            spread = {"retained": kept.mean(), "retained_sd": kept.std(ddof=1)}
            rows.append({"localizer": name, "sparsity": sparsity, "n": len(kept), **numbers, **spread})
    return pd.DataFrame(rows, columns=["localizer", "sparsity", "n", "examples", "seconds", "retained", "retained_sd"])


def cost_figure(study: Study) -> Figure | None:
    """How much of the score a localizer keeps for how many examples it takes a gradient of."""
    points = cost_points(study).dropna(subset=["examples", "retained"])
    sizes = [*dict.fromkeys([*choosing.sparsities(points)[:1], *choosing.sparsities(points)[-1:]])]
    if not sizes:
        return None
    title = "Cost: what a localizer keeps of the fine-tuned score for the gradients it takes"
    names = line_styles(choosing.localizers(study))
    caption = "Points: means over tasks and seeds; whiskers: standard error of the mean over these cells."
    drawn = framed(HEIGHT, title, details(study, "sweep"), caption, [*names])
    panels = drawn.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for panel, size in zip(panels, sizes, strict=True):
        _draw_cost(panel, points[points.sparsity == size], names)
        panel.set_title(f"region of {small_percent(size)}, n = {points[points.sparsity == size].n.max()} cells")
    panels[0].set_ylabel("score kept (% of fine-tuned)")
    explain(drawn, panels)
    return drawn


def _paths(study: Study) -> dict[str, tuple[pd.DataFrame, str]]:
    """Name -> rows of both kinds of test sets, and the column the line runs along."""

    def both(choose: Any) -> pd.DataFrame:
        return pd.concat([choose("id"), choose("ood")])

    found = {
        "graft by size": (both(lambda where: choosing.sweep(study, LEARNED, where=where)), "sparsity"),
        "WiSE-FT": (both(lambda where: _wise(study, "wise_ft", where)), "alpha"),
        "WiSE-graft": (both(lambda where: _wise(study, "wise_graft", where)), "alpha"),
    }
    for method in study.frames["peft"].method.unique():
        found[method] = (
            both(lambda where, method=method: choosing.peft(study, method, where)).assign(point=0),
            "point",
        )
    for variant in (FINETUNED, PRETRAINED):
        rows = both(lambda where, variant=variant: choosing.anchor(study, variant, where)).assign(point=0)
        found[variant] = (rows, "point")
    return {name: (rows, by) for name, (rows, by) in found.items() if (rows["where"] == "ood").any()}


def _wise(study: Study, variant: str, where: str) -> pd.DataFrame:
    rows = study.rows("wise", where)
    return rows[rows.variant == variant]


def _points(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """For each value along the line: means over seeds and their deviations, columns (id | ood, mean | std)."""
    means = rows.groupby([by, "seed", "where"])["score"].mean().unstack("where").reindex(columns=["id", "ood"])
    return 100 * means.dropna().groupby(level=0).agg(["mean", "std"])


def _draw_paths(panel: Axes, paths: dict[str, pd.DataFrame], title: str) -> None:
    others = line_styles(name for name in paths if name not in POINTS)
    for name, points in paths.items():
        if len(points):
            x, y = points["id"], points["ood"]
            panel.errorbar(
                x["mean"], y["mean"], xerr=x["std"].fillna(0), yerr=y["std"].fillna(0), label=words(name),
                elinewidth=0.7, **(POINTS.get(name) or others[name]),
            )  # fmt: skip
    panel.set_title(title)
    panel.set_xlabel("in distribution (%)")


def _draw_cost(panel: Axes, points: pd.DataFrame, names: dict[str, dict[str, Any]]) -> None:
    for point in points.itertuples():
        look = {**names[point.localizer], "linestyle": "", "markersize": 9}
        error = 100 * point.retained_sd / np.sqrt(point.n) if point.n > 1 else 0
        panel.errorbar(point.examples, 100 * point.retained, error, capsize=3, label=point.localizer, **look)
    least = points.examples[points.examples > 0].min()
    # linear from 0, where the localizers without gradients stand, to the decade of the cheapest of the others
    linear = 1.0 if np.isnan(least) else 10 ** np.floor(np.log10(least))
    panel.set_xscale("symlog", linthresh=linear, linscale=0.5)
    most = max(points.examples.max(), linear)
    panel.set_xticks([0, *(linear * 10**power for power in range(int(np.ceil(np.log10(most / linear))) + 1))])
    panel.set_xlim(left=-0.3 * linear)
    panel.set_xlabel("training examples a gradient was taken of")
