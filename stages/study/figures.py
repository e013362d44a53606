"""Figures of the study: curves over sparsity, training and test sets, trade-offs, and where masks lie.

A title says what this run found; what the paper found stands in captions.yaml.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import counted, extent, percent, score_label, small_percent, words
from stages.lib.report.line_styles import LEVELS, explain, framed, grid, line_style, line_styles, small_multiples
from stages.lib.report.mask_panels import CHANCE, KIND_HEIGHT, SHARE, draw_kinds, draw_layers
from stages.lib.report.stats import estimate, paired, ranked
from stages.lib.report.style import wrapped
from stages.study.frames import BIAS, LEARNED, PRUNED, Study, by_cell, own_rows, sparsities

CURVES_HEIGHT, SINGLE_HEIGHT, POINTS_HEIGHT, LAYERS_HEIGHT = 2.45, 3.2, 3.4, 2.1
MEAN = "mean of all"
# how far apart the whiskers of curves stand in the panel of means: in the logarithm of x, and as a share of its range
LOG_APART, APART = 0.09, 0.012
POINTS: dict[str, dict[str, Any]] = {
    FINETUNED: {"color": "black", "marker": "*", "markersize": 13, "linestyle": "", "zorder": 5},
    PRETRAINED: {"color": "#777777", "marker": "X", "markersize": 9, "linestyle": "", "zorder": 5},
}


def _score(rows: pd.DataFrame, measure: str = "score") -> float | None:
    """Mean over tasks."""
    return estimate(by_cell(rows, measure)).mean


def _found(parts: dict[str, pd.DataFrame]) -> str:
    """`name: 75.9 %, other name: 83.1 %`: scores of those parts that have rows, means over tasks."""
    means = {words(name): _score(rows) for name, rows in parts.items()}
    return ", ".join(f"{name}: {_percent(mean)}" for name, mean in means.items() if mean is not None)


def _percent(share: float) -> str:
    return f"{percent(share)}\N{NO-BREAK SPACE}%"


# --- Curves: a panel for each task and one for their mean, with levels across ---------------------------------------


@dataclass(frozen=True)
class Curve:
    """Rows with panel, seed, the x column and score; drawn as a line through the means over seeds.

    `whole` are those of its own fine-tuned model, where the chart has no level of one for all curves.
    """

    label: str
    rows: pd.DataFrame
    style: dict[str, Any]
    whole: pd.DataFrame | None = None


@dataclass(frozen=True)
class Chart:
    """Rows to draw in which `panels` (value of the column panel -> title); `levels` are rows whose mean is a horizontal line."""

    curves: list[Curve]
    panels: dict[str, str]
    levels: dict[str, pd.DataFrame] = field(default_factory=dict)
    x: str = "share"
    x_label: str = "region (% of graftable)"
    scale: float = 100.0
    logarithmic: bool = True

    def draw(self, study: Study, title: str, caption: str = "") -> Figure:
        """The panels, then the mean over them where there are several."""
        names = [*self.panels, *([MEAN] if len(self.panels) > 1 else [])]
        entries = [*map(words, self.levels), *(curve.label for curve in self.curves)]
        rows = pd.concat([curve.rows for curve in self.curves])
        points = "Points: means over seeds." if rows.seed.nunique() > 1 else "Points: the one seed."
        caption = " ".join(filter(None, [caption, points, self._about_mean(names)]))
        height = CURVES_HEIGHT * grid(len(names))[0] if len(names) > 1 else SINGLE_HEIGHT
        drawn = framed(height, title, _details(rows), caption, entries)
        y_label = score_label(study.metrics.values())

        for panel, name, first, last in small_multiples(drawn, names, sharex=True):
            self._panel(panel, name)
            panel.tick_params(labelbottom=True)
            panel.set(xlabel=self.x_label if last else "", ylabel=y_label if first else "")
        explain(drawn, drawn.axes)
        return drawn

    def _about_mean(self, names: list[str]) -> str:
        if MEAN not in names:
            return ""
        intervals = any(len(self._means(curve, MEAN).dropna()) for curve in self.curves)
        about = "; whiskers: 95 % interval, over tasks, of the distance to the fine-tuned model; set apart sideways"
        return f"Last panel: of curves that all panels have{about * intervals}."

    def _means(self, curve: Curve, name: str) -> pd.DataFrame:
        """x, mean, and half the width of the interval of the distance to the fine-tuned model, which only the last panel has."""
        if name != MEAN:
            means = curve.rows[curve.rows.panel == name].groupby(self.x)["score"].mean()
            return means.rename("mean").reset_index().assign(half=np.nan)
        found, whole = [], self.levels.get(FINETUNED, curve.whole)
        for x, rows in curve.rows.groupby(self.x):
            if {*rows.panel} == {*self.panels}:
                distance = None if whole is None else paired(by_cell(rows), by_cell(whole))
                # no distance from itself
                half = np.nan if distance is None or not distance.error else distance.mean - distance.low
                found.append([x, rows.groupby(["panel", "seed"])["score"].mean().groupby("panel").mean().mean(), half])
        return pd.DataFrame(found, columns=[self.x, "mean", "half"])

    def _panel(self, panel: Axes, name: str) -> None:
        shown = {*self.panels} if name == MEAN else {name}
        for variant, rows in self.levels.items():
            means = rows[rows.panel.isin(shown)].groupby("panel").score.mean()
            if {*means.index} == shown:
                panel.axhline(100 * means.mean(), label=words(variant), **LEVELS[variant])
        for number, curve in enumerate(self.curves):
            means = self._means(curve, name)
            if len(means):
                x = self.scale * means[self.x]
                if means.half.notna().any():
                    place = number - (len(self.curves) - 1) / 2
                    x = x * np.exp(LOG_APART * place) if self.logarithmic else x + APART * place * np.ptp(x)
                panel.errorbar(
                    x, 100 * means["mean"], 100 * means.half, label=curve.label, capsize=2.0, elinewidth=0.8, **curve.style
                )  # fmt: skip
        panel.set_title(MEAN if name == MEAN else wrapped(self.panels[name], 26))
        if self.logarithmic:
            panel.set_xscale("log")
            self._decades(panel)
        else:
            steps = sorted({self.scale * value for curve in self.curves for value in curve.rows[self.x]})
            panel.xaxis.set_major_locator(FixedLocator(steps, nbins=6))

    def _decades(self, panel: Axes) -> None:
        values = {self.scale * value for curve in self.curves for value in curve.rows[self.x].dropna().round(9)}
        if not values:
            return
        low, high = min(values) / 1.7, max(values) * 1.7
        panel.set_xlim(low, high)
        decades = [10.0**power for power in range(-6, 3) if low <= 10.0**power <= high]
        panel.xaxis.set_major_locator(FixedLocator(decades or [min(values)]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def localizers_figure(study: Study) -> Figure | None:
    """Figure 2: score against the size of the region, for every localizer."""
    sizes = study.common_sparsities
    if not sizes:
        return None
    cells = {name: by_cell(study.grafts(name, sizes[0])) for name in study.localizers}
    best, *others = means = ranked(cells)
    title = f"At {small_percent(sizes[0])} grafts on the {words(best)} region score highest: {_percent(means[best])}"
    if others:
        title += f", {paired(cells[best], cells[others[0]]).in_points()} points over {words(others[0])}"
    parts = {FINETUNED: study.anchor(FINETUNED), PRETRAINED: study.anchor(PRETRAINED)}
    beside = _found(parts | ({LEARNED: study.grafts(LEARNED, sizes[0])} if LEARNED in others[1:] else {}))
    title += f" ({beside})" if beside else ""
    return Chart(_by_localizer(study, _sized), _panels(study), _levels(study)).draw(study, title)


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
    # of each that all tasks have, the size at which it does best; biases may be fewer than were asked for
    best = {
        name: max((_score(part) or 0.0, part.share.mean()) for _, part in rows.groupby("sparsity"))
        for name, (_, rows) in sources.items()
        if {*rows.task} >= {*study.tasks}
    }
    told = [f"{name}: {_percent(mean)} (at {small_percent(size)})" for name, (mean, size) in best.items()]
    title = (
        f"Each at the size that scores highest on these rows, {'; '.join(told)}"
        if told
        else "Biases and regions with all else set to 0"
    )
    return Chart(curves, _panels(study), _levels(study)).draw(study, title)


def paradigm_figure(study: Study) -> Figure | None:
    """Figure 5: how small a graft may be for models fine-tuned in different ways."""
    frame = study.rows("paradigm")
    if frame.empty:
        return None
    frame = frame.assign(panel=frame.task)
    grafts, whole = (frame[frame.variant == variant] for variant in (GRAFTED, FINETUNED))
    # the fine-tuned model is the graft of everything
    rows = pd.concat([grafts, whole.assign(sparsity=1.0)])
    rows = rows.assign(share=rows.sparsity)
    styles = line_styles(frame.paradigm.unique())
    curves = [
        Curve(words(name), rows[rows.paradigm == name], style, whole[whole.paradigm == name])
        for name, style in styles.items()
    ]
    levels = {name: level for name, level in _levels(study).items() if name == PRETRAINED}
    least = grafts[grafts.sparsity == grafts.sparsity.min()]
    kept = [f"{_kept(least[least.paradigm == name])} after {words(name)}" for name in styles]
    gain = " (of its gain)" if least.gain.notna().any() else ""
    title = f"Grafts of {small_percent(grafts.sparsity.min())} keep of their model's score{gain} {', '.join(kept)}"
    chart = Chart(curves, _panels(study, frame.task), levels)
    return chart.draw(study, title, "At 100 %: the fine-tuned model itself.")


def _kept(rows: pd.DataFrame) -> str:
    """`92.0 % (71.3 %)`: what grafts keep of their model's score, and of its gain where that is said."""
    retained, gain = (_score(rows, measure) for measure in ("retained", "gain"))
    return _percent(retained) + ("" if gain is None else f" ({_percent(gain)})")


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
    panels, levels = _panels(study, frame.task), _levels(study)
    chart = Chart(curves, panels, levels, x="step", x_label="step of fine-tuning", scale=1.0, logarithmic=False)
    ends = study.saturation(0.95).groupby("task").mean().mean()
    name = f"its graft of {small_percent(grafts.sparsity.max())}"
    title = f"95 % of the best gain: the model after {percent(ends.model, 0)} % of the steps, {name} after {percent(ends.graft, 0)} %"
    return chart.draw(study, title)


def ood_sparsity_figure(study: Study) -> Figure | None:
    """Figure 7, first part: score on other test sets against the size of the region."""
    if study.rows("sweep", "ood").empty:
        return None
    curves = _by_localizer(study, lambda rows: _of_pairs(_sized(rows)), "ood")
    levels = {name: _of_pairs(rows) for name, rows in _levels(study, "ood").items()}
    panels = {f"{task} → {test}": f"{study.named(task)} → {test}" for task, test in study.pairs}
    title = f"Out of distribution, {_outside(study)}"
    return Chart(curves, panels, levels).draw(study, title, "Trained task → test set.")


def _outside(study: Study) -> str:
    name = study.leading
    sizes = sparsities(study.grafts(name, where="ood"))
    grafts = {f"{words(name)} graft of {small_percent(size)}": study.grafts(name, size, "ood") for size in sizes}
    return _found(grafts | {name: study.anchor(name, "ood") for name in (FINETUNED, PRETRAINED)})


def _by_localizer(study: Study, make: Callable[[pd.DataFrame], pd.DataFrame], where: str = "id") -> list[Curve]:
    styles = line_styles(study.localizers)
    return [Curve(words(name), make(study.grafts(name, where=where)), style) for name, style in styles.items()]


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


def _details(rows: pd.DataFrame) -> str:
    """The number of tasks, seeds and test rows that a figure is about."""
    seeds, n = rows.groupby("task").seed.nunique(), rows.groupby(["task", "test_set"])["n"].max()
    return f"{counted(rows.task.nunique(), 'task')}, {extent(seeds)} seed{'s' if seeds.max() > 1 else ''}, n = {extent(n)} rows a test set"


# --- One measure against another -----------------------------------------------------------------------------------


def tradeoff_figure(study: Study) -> Figure | None:
    """Figure 7, second part: score on other test sets against that on the own one, for WiSE and grafts by size."""
    paths = _paths(study)
    outside = {task for rows, _ in paths.values() for task in rows.task[rows["where"] == "ood"]}
    shown = [task for task in study.tasks if task in outside]
    if not shown:
        return None
    rows = pd.concat([part[part.task.isin(shown)] for part, _ in paths.values()])
    caption = (
        "Out of distribution: mean over the task's other test sets. Points: means over seeds. "
        "Lines run from little to much of the fine-tuned model: WiSE by its weight alpha, grafts by their size."
    )
    title = f"In and out of distribution, {_inside_and_outside(study, paths, shown)}"
    drawn = framed(POINTS_HEIGHT * grid(len(shown))[0], title, _details(rows), caption, [*map(words, paths)])
    styles = line_styles(name for name in paths if name not in POINTS) | POINTS
    for panel, task, first, _ in small_multiples(drawn, shown):
        for name, (rows, by) in paths.items():
            points = _points(rows[rows.task == task], by)
            if len(points):
                panel.plot(points["id"], points["ood"], label=words(name), **styles[name])
        y_label = "out of distribution (%)" if first else ""
        panel.set(title=study.named(task), xlabel="in distribution (%)", ylabel=y_label)
    explain(drawn, drawn.axes)
    return drawn


def _inside_and_outside(study: Study, paths: dict[str, tuple[pd.DataFrame, str]], shown: list[str]) -> str:
    """`fine-tuned: 67.2 and 64.0 %`: means over these tasks, along a line halfway."""
    told = []
    for name in ("graft by size", "WiSE-FT", FINETUNED, PRETRAINED):
        rows, by = paths.get(name, (pd.DataFrame(), ""))
        if len(rows):
            points = sorted(rows[by].unique())
            value = points[len(points) // 2]
            half = rows[(rows[by] == value) & rows.task.isin(shown)]
            inside, outside = (percent(_score(half[half["where"] == where])) for where in ("id", "ood"))
            at = {
                "sparsity": f"{words(study.leading)} graft of {small_percent(value)}",
                "alpha": f"{name} at alpha {value:g}",
            }
            told.append(f"{at.get(by, words(name))}: {inside} and {outside}\N{NO-BREAK SPACE}%")
    return ", ".join(told)


def _paths(study: Study) -> dict[str, tuple[pd.DataFrame, str]]:
    """Name -> rows of both kinds of test sets, and the column the line runs along."""
    paths = {
        "graft by size": (study.grafts(study.leading, where=None), "sparsity"),
        "WiSE-FT": (study.rows("wise", None, variant="wise_ft"), "alpha"),
        "WiSE-graft": (study.rows("wise", None, variant="wise_graft"), "alpha"),
    }
    models = {name: own_rows(study.rows("peft", None, method=name)) for name in study.frames["peft"].method.unique()}
    models |= {name: study.anchor(name, None) for name in (FINETUNED, PRETRAINED)}
    paths |= {name: (rows.assign(point=0), "point") for name, rows in models.items()}
    tested = {name: (rows[rows["where"] != "train"], by) for name, (rows, by) in paths.items()}
    return {name: (rows, by) for name, (rows, by) in tested.items() if (rows["where"] == "ood").any()}


def _points(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """For each value along the line: means over seeds, columns id and ood."""
    means = rows.groupby([by, "seed", "where"])["score"].mean().unstack("where").reindex(columns=["id", "ood"])
    return 100 * means.dropna().groupby(level=0).mean()


# --- Where masks lie -----------------------------------------------------------------------------------------------


def places_figure(study: Study, by: str) -> Figure | None:
    """Figures 9 and 10: share of the learned (or the sweep's first) mask in each `layer`, or in each `kind` of module, per task."""
    shares, size = study.places(by, study.leading)
    if shares.empty:
        return None
    layers, label = by == "layer", f"{words(study.leading)} mask"
    tasks = [task for task in study.tasks if task in {*shares.task}]
    means = shares.groupby(by)[["share", "chance"]].mean().sort_values("share", ascending=False)
    most = means.iloc[0]
    where = f"layer {most.name + 1}" if layers else most.name
    largest = shares.groupby(["task", by]).share.mean().unstack().idxmax(axis=1)
    title = f"The largest part of {label}s of {small_percent(size)} lies on average in {where}: {_percent(most.share)}"
    title += f", by chance {_percent(most.chance)}; it is the largest in {(largest == most.name).sum()} of {counted(len(tasks), 'task')}"
    seeds = shares.seed.nunique()
    caption = "Bars: mean over seeds; whiskers: standard deviation over seeds." if seeds > 1 else "Bars: the one seed."
    height = LAYERS_HEIGHT if layers else 0.75 + KIND_HEIGHT * shares.kind.nunique()
    details = f"{counted(len(tasks), 'task')}, {counted(seeds, 'seed')}"
    drawn = framed(height * grid(len(tasks))[0], title, details, caption, [CHANCE, label])
    for panel, task, first, last in small_multiples(drawn, tasks, sharex=True, sharey=True):
        (draw_layers if layers else draw_kinds)(panel, shares[shares.task == task], label)
        x_label, y_label = ("layer", SHARE) if layers else (SHARE, "")
        panel.set(title=task, xlabel=x_label if last else "", ylabel=y_label if first else "")
        panel.tick_params(labelbottom=True)
    explain(drawn, drawn.axes[:1])
    return drawn


FIGURES: dict[str, Callable[[Study], Figure | None]] = {
    "localizers": localizers_figure,
    "bias": bias_figure,
    "paradigm": paradigm_figure,
    "ood_tradeoff": tradeoff_figure,
    "ood_sparsity": ood_sparsity_figure,
    "layers": partial(places_figure, by="layer"),
    "modules": partial(places_figure, by="kind"),
    "trajectory": trajectory_figure,
}
