"""Figures of the study: curves over sparsity, training and test sets, trade-offs, costs, and where masks lie."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import DAGGER, counted, small_percent, words
from stages.lib.report.line_styles import LEVELS, explain, framed, grid, line_style, line_styles, small_multiples
from stages.lib.report.mask_panels import CHANCE, KIND_HEIGHT, SHARE, draw_kinds, draw_layers
from stages.lib.report.style import wrapped
from stages.study.frames import BIAS, LEARNED, Study, own_rows, sparsities

PRUNED = "pruned"
CURVES_HEIGHT, POINTS_HEIGHT, LAYERS_HEIGHT = 2.45, 3.4, 2.1
MEAN = "mean of the tasks"
WHISKERS = "Points: means over seeds; whiskers: standard deviation over seeds."
POINTS: dict[str, dict[str, Any]] = {
    FINETUNED: {"color": "black", "marker": "*", "markersize": 13, "linestyle": "", "zorder": 5},
    PRETRAINED: {"color": "#777777", "marker": "X", "markersize": 9, "linestyle": "", "zorder": 5},
}

# --- Curves: a panel for each task and one for their mean, with levels across ---------------------------------------


@dataclass(frozen=True)
class Curve:
    """Rows with panel, seed, the x column and score; drawn as a line through the means over seeds."""

    label: str
    rows: pd.DataFrame
    style: dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """What to draw in which `panels` (value of the column panel -> title); `levels` are rows whose mean is a horizontal line."""

    curves: list[Curve]
    panels: dict[str, str]
    levels: dict[str, pd.DataFrame] = field(default_factory=dict)
    x: str = "share"
    x_label: str = "region (% of graftable)"
    scale: float = 100.0
    logarithmic: bool = True

    def draw(self, study: Study, stage: str, title: str, caption: str = WHISKERS) -> Figure:
        """The panels, then the mean over them where there are several."""
        names = [*self.panels, *([MEAN] if len(self.panels) > 1 else [])]
        entries = [*map(words, self.levels), *(curve.label for curve in self.curves)]
        drawn = framed(CURVES_HEIGHT * grid(len(names))[0], title, _details(study, stage), caption, entries)
        y_label = f"accuracy, F1{DAGGER} (%)" if study.f1_tasks else "accuracy (%)"

        def draw(panel: Axes, name: str, first: bool, last: bool) -> None:
            self._panel(panel, name)
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(self.x_label if last else "")
            panel.set_ylabel(y_label if first else "")

        explain(drawn, small_multiples(drawn, names, draw, sharex=True))
        return drawn

    def _panel(self, panel: Axes, name: str) -> None:
        shown = [*self.panels] if name == MEAN else [name]
        for variant, rows in self.levels.items():
            level = rows[rows.panel.isin(shown)].score.mean()
            panel.axhline(100 * level, label=words(variant), **LEVELS[variant])
        for curve in self.curves:
            means = averages(curve.rows[curve.rows.panel.isin(shown)], self.x)
            if len(means):
                panel.errorbar(
                    self.scale * means[self.x], 100 * means["mean"], 100 * means.sd.fillna(0),
                    label=curve.label, capsize=2.5, elinewidth=0.9, **curve.style,
                )  # fmt: skip
        panel.set_title(MEAN if name == MEAN else wrapped(self.panels[name], 26))
        values = sorted({self.scale * value for curve in self.curves for value in curve.rows[self.x].dropna().round(9)})
        if self.logarithmic:
            panel.set_xscale("log")
        if self.logarithmic and values:
            _decades(panel, values[0] / 1.6, values[-1] * 1.6, values[0])


def averages(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """x, mean, sd, n: over seeds, of each seed's mean score over what else is in the rows (tasks, test sets)."""
    by_seed = rows.groupby([x, "seed"], sort=True)["score"].mean().dropna()
    means = by_seed.groupby(level=0).agg(["mean", "std", "count"]).reset_index()
    return means.set_axis([x, "mean", "sd", "n"], axis=1)


def _decades(panel: Axes, low: float, high: float, least: float) -> None:
    panel.set_xlim(low, high)
    decades = [10.0**power for power in range(-6, 3) if low <= 10.0**power <= high]
    panel.xaxis.set_major_locator(FixedLocator(decades or [least]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def localizers_figure(study: Study) -> Figure | None:
    """Figure 2: score against the size of the region, for every localizer."""
    if not study.localizers:
        return None
    title = "Localizers by size (paper: the learned region comes close to the fine-tuned model at the smallest size)"
    return Chart(_by_localizer(study, _sized), _panels(study), _levels(study)).draw(study, "sweep", title)


def bias_figure(study: Study) -> Figure | None:
    """Figure 4: grafts of biases alone, and models pruned to a region, beside learned grafts."""
    pruned = study.anchor(PRUNED)
    sources = {
        "learned graft": (0, _sized(study.grafts(LEARNED))),
        "graft of biases": (7, _sized(study.grafts(BIAS))),
        "learned region, rest set to 0": (5, _sized(study.readout("prune", LEARNED))),
        "most moved, rest set to 0": (4, pruned.assign(share=pruned.sparsity, panel=pruned.task)),
    }
    if all(rows.empty for name, (_, rows) in sources.items() if name != "learned graft"):
        return None
    curves = [Curve(name, rows, line_style(number)) for name, (number, rows) in sources.items() if len(rows)]
    title = "Biases and pruning (paper: neither carries the skill as the learned graft does)"
    return Chart(curves, _panels(study), _levels(study)).draw(study, "sweep", title)


def paradigm_figure(study: Study) -> Figure | None:
    """Figure 5: how small a graft may be for models fine-tuned in different ways."""
    frame = study.rows("paradigm")
    if frame.empty:
        return None
    # the fine-tuned model is the graft of everything
    whole = frame[frame.variant == FINETUNED].assign(sparsity=1.0)
    rows = pd.concat([frame[frame.variant == GRAFTED], whole])
    rows = rows.assign(share=rows.sparsity, panel=rows.task)
    styles = line_styles(frame.paradigm.unique())
    curves = [Curve(name, rows[rows.paradigm == name], style) for name, style in styles.items()]
    levels = {name: level for name, level in _levels(study).items() if name == PRETRAINED}
    title = "Optimizers (paper: small grafts keep less after AdamW than after SGD; an L1 penalty helps)"
    caption = f"At 100 %: the fine-tuned model itself. {WHISKERS}"
    return Chart(curves, _panels(study, frame.task), levels).draw(study, "paradigm", title, caption)


def trajectory_figure(study: Study) -> Figure | None:
    """Figure 15: a fixed region over the steps of fine-tuning."""
    frame = study.rows("trajectory")
    if frame.empty:
        return None
    frame = frame.assign(panel=frame.task)
    grafts = frame[frame.variant == GRAFTED]
    curves = [Curve("checkpoint", frame[frame.variant == "checkpoint"], line_style(7) | {"linestyle": "-"})]
    curves += [
        Curve(f"graft of {small_percent(size)}", grafts[grafts.sparsity == size], line_style(number))
        for number, size in enumerate(sparsities(grafts))
    ]
    over_steps = {"x": "step", "x_label": "step of fine-tuning", "scale": 1.0, "logarithmic": False}
    title = "Over training (paper: the graft follows the model and saturates before it does)"
    return Chart(curves, _panels(study, frame.task), _levels(study), **over_steps).draw(study, "trajectory", title)


def ood_sparsity_figure(study: Study) -> Figure | None:
    """Figure 7, first part: score on other test sets against the size of the region."""
    if study.rows("sweep", "ood").empty:
        return None
    curves = _by_localizer(study, lambda rows: _of_pairs(_sized(rows)), "ood")
    levels = {name: _of_pairs(rows) for name, rows in _levels(study, "ood").items()}
    panels = {f"{task} → {test}": f"{study.named(task)} → {test}" for task, test in study.pairs}
    title = "Out of distribution (paper: small grafts match or surpass the fine-tuned model)"
    return Chart(curves, panels, levels).draw(study, "sweep", title, f"Trained task → test set. {WHISKERS}")


def _by_localizer(study: Study, make: Callable[[pd.DataFrame], pd.DataFrame], where: str = "id") -> list[Curve]:
    styles = line_styles(study.localizers)
    return [Curve(name, make(study.grafts(name, where=where)), style) for name, style in styles.items()]


def _sized(rows: pd.DataFrame) -> pd.DataFrame:
    """With the share of the graftable parameters that is really selected, averaged over the cells of a size."""
    share = (rows.selected / rows.graftable).fillna(rows.sparsity)
    return rows.assign(share=share.groupby(rows.sparsity).transform("mean").round(12), panel=rows.task)


def _of_pairs(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(panel=rows.task + " → " + rows.test_set)


def _panels(study: Study, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """A panel for each task, or each of these."""
    return {task: study.named(task) for task in study.tasks if tasks is None or task in {*tasks}}


def _levels(study: Study, where: str = "id") -> dict[str, pd.DataFrame]:
    """The fine-tuned and the pretrained model, as far as the anchor stage ran."""
    rows = {variant: study.anchor(variant, where) for variant in (FINETUNED, PRETRAINED)}
    return {variant: part.assign(panel=part.task) for variant, part in rows.items() if len(part)}


def _details(study: Study, stage: str) -> str:
    """How many tasks, seeds and test rows a figure is about."""
    frame = study.rows(stage)
    rows = frame.groupby("task")["n"].max()
    n = f"{rows.min():,.0f}" + (f" to {rows.max():,.0f}" if rows.max() > rows.min() else "")
    return f"{counted(frame.task.nunique(), 'task')}, {counted(frame.seed.nunique(), 'seed')}, n = {n} test rows a task"


# --- One measure against another -----------------------------------------------------------------------------------


def tradeoff_figure(study: Study) -> Figure | None:
    """Figure 7, second part: score on other test sets against that on the own one, for WiSE and grafts by size."""
    paths = _paths(study)
    shown = [
        task for task in study.tasks if any(task in {*rows.task[rows["where"] == "ood"]} for rows, _ in paths.values())
    ]
    if not shown:
        return None
    caption = (
        f"OOD: mean over the task's other test sets. {WHISKERS} "
        "Lines run from little to much of the fine-tuned model: WiSE by its weight alpha, grafts by their size."
    )
    title = "In and out of distribution: further up and to the right is better"
    details = _details(study, "anchor" if len(study.rows("anchor")) else "sweep")
    drawn = framed(POINTS_HEIGHT * grid(len(shown))[0], title, details, caption, [*paths])

    def draw(panel: Axes, task: str, first: bool, _last: bool) -> None:
        points = {name: _points(rows[rows.task == task], by) for name, (rows, by) in paths.items()}
        _draw_paths(panel, points)
        panel.set(
            title=study.named(task), xlabel="in distribution (%)", ylabel="out of distribution (%)" if first else ""
        )

    explain(drawn, small_multiples(drawn, shown, draw))
    return drawn


def _paths(study: Study) -> dict[str, tuple[pd.DataFrame, str]]:
    """Name -> rows of both kinds of test sets, and the column the line runs along."""

    def both(choose: Callable[[str], pd.DataFrame], **columns: int) -> pd.DataFrame:
        return pd.concat([choose("id"), choose("ood")]).assign(**columns)

    paths = {
        "graft by size": (both(lambda where: study.grafts(LEARNED, where=where)), "sparsity"),
        "WiSE-FT": (both(lambda where: study.rows("wise", where, variant="wise_ft")), "alpha"),
        "WiSE-graft": (both(lambda where: study.rows("wise", where, variant="wise_graft")), "alpha"),
    }
    for name in study.frames["peft"].method.unique():
        rows = both(lambda where, name=name: own_rows(study.rows("peft", where, method=name)), point=0)
        paths[name] = rows, "point"
    for variant in (FINETUNED, PRETRAINED):
        paths[variant] = both(lambda where, variant=variant: study.anchor(variant, where), point=0), "point"
    return {name: (rows, by) for name, (rows, by) in paths.items() if (rows["where"] == "ood").any()}


def _points(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """For each value along the line: means over seeds and their deviations, columns (id | ood, mean | std)."""
    means = rows.groupby([by, "seed", "where"])["score"].mean().unstack("where").reindex(columns=["id", "ood"])
    return 100 * means.dropna().groupby(level=0).agg(["mean", "std"])


def _draw_paths(panel: Axes, paths: dict[str, pd.DataFrame]) -> None:
    styles = line_styles(name for name in paths if name not in POINTS) | POINTS
    for name, points in paths.items():
        if len(points):
            x, y = points["id"], points["ood"]
            panel.errorbar(
                x["mean"], y["mean"], xerr=x["std"].fillna(0), yerr=y["std"].fillna(0), label=words(name),
                elinewidth=0.7, **styles[name],
            )  # fmt: skip


def cost_figure(study: Study) -> Figure | None:
    """How much of the score a localizer keeps for how many examples it takes a gradient of."""
    points = study.costs().dropna(subset=["examples", "retained"])
    sizes = [*dict.fromkeys([*sparsities(points)[:1], *sparsities(points)[-1:]])]
    if not sizes:
        return None
    title = "Cost: what a localizer keeps of the fine-tuned score for the gradients it takes"
    styles = line_styles(study.localizers)
    caption = "Points: means over tasks and seeds; whiskers: standard error of the mean over these cells."
    drawn = framed(POINTS_HEIGHT, title, _details(study, "sweep"), caption, [*styles])
    panels = drawn.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for panel, size in zip(panels, sizes, strict=True):
        part = points[points.sparsity == size]
        _draw_costs(panel, part, styles)
        panel.set_title(f"region of {small_percent(size)}, n = {part.n.max()} cells")
    panels[0].set_ylabel("score kept (% of fine-tuned)")
    explain(drawn, panels)
    return drawn


def _draw_costs(panel: Axes, points: pd.DataFrame, styles: dict[str, dict[str, Any]]) -> None:
    for point in points.itertuples():
        style = {**styles[point.localizer], "linestyle": "", "markersize": 9}
        error = 100 * point.retained_sd / np.sqrt(point.n) if point.n > 1 else 0
        panel.errorbar(point.examples, 100 * point.retained, error, capsize=3, label=point.localizer, **style)
    least = points.examples[points.examples > 0].min()
    # linear from 0, where the localizers without gradients stand, to the decade of the cheapest of the others
    linear = 1.0 if np.isnan(least) else 10 ** np.floor(np.log10(least))
    panel.set_xscale("symlog", linthresh=linear, linscale=0.5)
    most = max(points.examples.max(), linear)
    panel.set_xticks([0, *(linear * 10**power for power in range(int(np.ceil(np.log10(most / linear))) + 1))])
    panel.set_xlim(left=-0.3 * linear)
    panel.set_xlabel("training examples a gradient was taken of")


# --- Where masks lie -----------------------------------------------------------------------------------------------


def layer_figure(study: Study) -> Figure | None:
    """Figure 9: share of the learned mask in each layer, per task."""
    return _places(study, "layer", "Layers of the learned region (paper: mostly the middle ones)")


def kind_figure(study: Study) -> Figure | None:
    """Figure 10: share of the learned mask in each kind of module, per task."""
    title = "Modules of the learned region (paper: attention values, first feed-forward maps, LayerNorm)"
    return _places(study, "kind", title)


def _places(study: Study, by: str, title: str) -> Figure | None:
    shares, size = study.places(by)
    if shares.empty:
        return None
    layers, label = by == "layer", "learned mask"
    height = LAYERS_HEIGHT if layers else 0.75 + KIND_HEIGHT * shares.kind.nunique()
    tasks = [task for task in study.tasks if task in {*shares.task}]
    details = f"{counted(len(tasks), 'task')}, {counted(shares.seed.nunique(), 'seed')}, learned masks of {small_percent(size)}"
    caption = "Bars: mean over seeds; whiskers: standard deviation over seeds."
    drawn = framed(height * grid(len(tasks))[0], title, details, caption, [CHANCE, label])

    def draw(panel: Axes, task: str, first: bool, last: bool) -> None:
        (draw_layers if layers else draw_kinds)(panel, shares[shares.task == task], label)
        x_label, y_label = ("layer", SHARE) if layers else (SHARE, "")
        panel.set(title=task, xlabel=x_label if last else "", ylabel=y_label if first else "")
        panel.tick_params(labelbottom=True)

    explain(drawn, small_multiples(drawn, tasks, draw, sharex=True, sharey=True)[:1])
    return drawn


FIGURES: dict[str, Callable[[Study], Figure | None]] = {
    "localizers": localizers_figure,
    "bias": bias_figure,
    "paradigm": paradigm_figure,
    "ood_tradeoff": tradeoff_figure,
    "ood_sparsity": ood_sparsity_figure,
    "layers": layer_figure,
    "modules": kind_figure,
    "trajectory": trajectory_figure,
    "cost": cost_figure,
}
