"""The figures of the main pipeline: bars of scores and of calibration errors, small multiples of confidence, and score against ECE."""

import math
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import (
    FINETUNED,
    GRAFT_REFITTED,
    GRAFT_TEMPERED,
    GRAFTED,
    MOVEMENT_GRAFTED,
    PRETRAINED,
    REFITTED,
    TEMPERED,
    VARIANTS,
    WISE_FT,
    WISE_GRAFT,
)  # fmt: skip
from stages.lib.report.format import MARKS, counted, extent, marked, name_of, percent, points, score_label, words
from stages.lib.report.line_styles import small_multiples
from stages.lib.report.stats import paired
from stages.lib.report.style import COLORS, LINES, NARROW_BARS, bar_style, figure, legend, wrapped
from stages.report import CELL, Results, sizes_of

LEAST_PER_ROW, MOST_PER_ROW = 3, 7
ROW_HEIGHT, DIAGRAM_HEIGHT, HISTOGRAM_HEIGHT = 3.1, 3.3, 2.3
BAR = 0.21
# the accuracy of fewer rows than this is not drawn: it is hardly more than chance
FEWEST_ROWS = 10
# colour, marker, filled or open: open where a temperature was fitted
FRONTIER = {
    PRETRAINED: ("#999999", "o", True), FINETUNED: (COLORS[FINETUNED], "o", True), TEMPERED: (COLORS[FINETUNED], "o", False),
    WISE_FT: ("#CC79A7", "^", True), MOVEMENT_GRAFTED: (COLORS[MOVEMENT_GRAFTED], "D", True), GRAFTED: (COLORS[GRAFTED], "s", True),
    GRAFT_TEMPERED: (COLORS[GRAFTED], "s", False),
    REFITTED: (COLORS[FINETUNED], "P", True), GRAFT_REFITTED: (COLORS[GRAFTED], "P", True),
}  # fmt: skip
FRONTIER_NAMES = {PRETRAINED: "pre", FINETUNED: "FT", TEMPERED: "FT/T", WISE_FT: "WiSE-FT", MOVEMENT_GRAFTED: "movement",
    GRAFTED: "graft", GRAFT_TEMPERED: "graft/T", REFITTED: "FT/H", GRAFT_REFITTED: "graft/H"}  # fmt: skip
# percent that an axis goes beyond 0 and 100 at most
EDGE = 10
# a confidence above this is a sure prediction
SURE = 0.9
# points across, for a bin with hardly any rows and for one with all of them
SMALLEST_MARKER, LARGEST_MARKER = 2.0, 9.0


@dataclass(frozen=True)
class Bars:
    """Variants side by side: `labels` maps a value of the column `group` of `frame` to what stands below its bars."""

    frame: pd.DataFrame
    labels: dict[str, str]
    measure: str = "score"

    @property
    def metrics(self) -> list[str]:
        """The metrics other than accuracy whose marks stand behind names."""
        return [metric for metric, mark in MARKS.items() if any(mark in label for label in self.labels.values())]


def accuracy(results: Results) -> Figure:
    """Score of every variant on each task's own test set."""
    means = results.by_cell("score").groupby("task").mean().mean()
    scores = "matches exactly in" if results.generative else "scores"
    theirs = f"where the fine-tuned model has {percent(means[FINETUNED])} %"
    title = f"The graft {scores} {percent(means[GRAFTED])} % {theirs}{_over_tasks(results.tasks)}"
    return _bars_figure(results, title, _by_task(results, "score"))


def calibration(results: Results) -> Figure:
    """Calibration error of every variant on each task's own test set."""
    means = results.by_cell("ece").groupby("task").mean().mean()
    return _bars_figure(
        results, f"Calibration error{_over_tasks(results.tasks)}: {_both(means)}", _by_task(results, "ece")
    )


def _both(means: pd.Series) -> str:
    return f"{percent(means[GRAFTED])} % with the graft, {percent(means[FINETUNED])} % when fine-tuned"


def ood(results: Results) -> Figure:
    """Score of every variant on test sets of other data sets, or a note that there are none."""
    if not results.leaks:
        drawn = figure(1.5, "Out of distribution: no OOD sets configured", "", "")
        panel = drawn.subplots()
        panel.set_axis_off()
        text = "no OOD sets configured\nName some under ood.sets in params.yaml."
        panel.text(0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes)
        return drawn
    labels = {
        f"{task} -> {test}": "\n".join([_name(results, task), f"→ {wrapped(test, 10)}", _rows(results.of(task, test))])
        for task, test in results.leaks
    }
    grouped = results.ood.assign(group=results.ood.task + " -> " + results.ood.test_set)
    means = grouped.groupby(["variant", "task"]).score.mean().groupby("variant").mean()
    title = f"Out of distribution{_over_tasks({*grouped.task})}: {_both(means)}"
    return _bars_figure(results, title, Bars(grouped, labels), "Trained task → test set. ")


def reliability(results: Results) -> Figure:
    """Accuracy against confidence for each task, with the share of test rows in each bin of confidence below it."""
    rows, columns = _grid(len(results.tasks))
    above = {variant: points(_overconfidence(results, variant)) for variant in (FINETUNED, GRAFTED)}
    told = f"{above[FINETUNED]} points when fine-tuned, {above[GRAFTED]} with the graft"
    drawn = figure(
        DIAGRAM_HEIGHT * rows, f"Confidence less accuracy{_over_tasks(results.tasks)}: {told}",
        _details(results), f"ECE: fine-tuned → grafted, mean over seeds. Below each diagram: share of test {results.unit} in each bin "
        f"of confidence, all seeds together, both bars of a bin side by side. Markers grow with it; bins of "
        f"fewer than {FEWEST_ROWS} {results.unit} are not drawn.",
    )  # fmt: skip
    panels = drawn.subplots(2 * rows, columns, squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1] * rows)
    for diagram, task in _panels(results, panels[::2]):
        _draw_diagram(diagram, results.reliability[results.reliability.task == task])
        errors = " → ".join(percent(results.by_cell("ece")[variant][task].mean()) for variant in (FINETUNED, GRAFTED))
        diagram.set_title(f"{_panel_title(results, task)}\nECE {errors} %")
    for strip, task in _panels(results, panels[1::2]):
        _draw_counts(strip, results.reliability[results.reliability.task == task])
        strip.tick_params(labelbottom=True)
        strip.set_xlabel("confidence (%)")
    for upper, lower in zip(panels[::2, 0], panels[1::2, 0], strict=True):
        upper.set_ylabel("accuracy (%)")
        lower.set_ylabel(f"{results.unit} (%)")
    legend(drawn, panels[0, 0])
    return drawn


def _overconfidence(results: Results, variant: str) -> float:
    """Mean confidence less accuracy of a variant, over the rows of each task and then over tasks."""
    bins = results.reliability[results.reliability.variant == variant]
    above = ((bins.confidence - bins.accuracy) * bins["count"]).groupby(bins.task).sum()
    return float((above / bins.groupby("task")["count"].sum()).mean())


def confidence(results: Results) -> Figure:
    """Confidence of the models in their predictions, for each task (figure 6 of the paper)."""
    rows, columns = _grid(len(results.tasks))
    counts = results.confidence.groupby(["variant", "task", "low"])["count"].sum().unstack()
    edge = min((low for low in counts if low >= SURE), default=max(counts))
    shares = (counts.loc[:, edge:].sum(axis=1) / counts.sum(axis=1)).groupby("variant").mean()
    title = (
        f"Surer than {100 * edge:.3g} %{_over_tasks(results.tasks)}: the fine-tuned model of {percent(shares[FINETUNED], 0)} % of the "
        f"{results.unit}, the graft of {percent(shares[GRAFTED], 0)} %"
    )
    what = "token" if results.generative else "label"
    caption = (
        f"Confidence: the probability of the predicted {what}. All seeds together, both bars of a bin side by side."
    )
    drawn = figure(HISTOGRAM_HEIGHT * rows, title, _details(results), caption)
    for panel, task, first, _ in small_multiples(drawn, [*results.tasks], columns, sharex=True, sharey=True):
        bars = results.confidence[results.confidence.task == task]
        for side, variant in enumerate((FINETUNED, GRAFTED)):
            own = bars[bars.variant == variant]
            width = 100 * (own.high - own.low) / 2
            places = 100 * own.low + (side + 0.5) * width
            panel.bar(places, 100 * own.share, width, label=words(variant), **NARROW_BARS[variant])
        panel.set(title=_panel_title(results, task), xlabel="confidence (%)")
        panel.set_ylabel(f"{results.unit} (%)" if first else "")
        panel.tick_params(labelbottom=True)
    # no confidence is below one in the number of labels
    occupied = results.confidence.loc[results.confidence["count"] > 0, "low"]
    drawn.axes[0].set_xlim(float(np.floor(10 * occupied.min()) * 10) if len(occupied) else 0.0, 101)
    legend(drawn, drawn.axes[0])
    return drawn


def frontier(results: Results) -> Figure:
    """Score against calibration error of the graft and of what is simpler, for each task and for their mean."""
    ece = results.by_cell("ece").groupby("task").mean().mean()
    title = (
        f"ECE {percent(ece[FINETUNED])} % fine-tuned, {percent(ece[TEMPERED])} % with one temperature, "
        f"{percent(ece[WISE_FT])} % by WiSE-FT, {percent(ece[GRAFTED])} % grafted"
    )
    caption = (
        "Up and left is better; each panel has axes of its own. pre: pretrained; FT: fine-tuned; /T: at one temperature; this and the "
        "weight of WiSE-FT are fitted on dev rows. Line: between the pretrained model and the graft. Means over seeds"
    )
    caption += "; the first panel is their mean over tasks." if _over_tasks(results.tasks) else "."
    close: dict[str, float] = {}
    if results.refits:  # two more find room in the legend
        caption += " /H: with the head refitted to training rows."
        close = {"handlelength": 1, "handletextpad": 0.3, "columnspacing": 1}
    # dev chooses another alpha of WiSE-FT in each cell, which are one point all the same
    cells = results.frontier.assign(alpha=results.frontier.alpha.where(results.frontier.method == WISE_GRAFT))
    means = _mean_points(cells, ["task", "method", "alpha"])
    over_tasks = _with_intervals(_mean_points(means, ["method", "alpha"]), cells)
    if over_tasks.ece_half.notna().any():
        caption += " Its whiskers, of all but pre: 95 % interval, over tasks, of the distance to the fine-tuned model."
    if marks := marked(task.metric for task in results.tasks.values()):
        caption += f" {marks}."
    parts = {"mean over tasks": over_tasks} if _over_tasks(results.tasks) else {}
    parts |= {_name(results, task, 18): means[means.task == task] for task in results.tasks}
    rows, columns = _grid(len(parts))
    drawn = figure(DIAGRAM_HEIGHT * rows, title, _details(results), caption)
    for panel, (name, part), first, _ in small_multiples(drawn, [*parts.items()], columns):
        _draw_frontier(panel, part)
        panel.set(title=name, ylabel="score (%)" if first else "")
    legend(drawn, drawn.axes[0], **close)
    return drawn


def _mean_points(points: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    return points.groupby(keys, dropna=False, sort=False)[["score", "ece"]].mean().reset_index()


def _with_intervals(points: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """With half the width of the interval of the distance to the fine-tuned model, over tasks; NaN where a method has none."""
    single = cells[cells.alpha.isna()]
    own = {name: part.set_index(CELL) for name, part in single.groupby("method") if name != PRETRAINED}
    whole = own.pop(FINETUNED)
    for measure in ("score", "ece"):
        distances = {name: paired(part[measure], whole[measure]) for name, part in own.items()}
        halves = {name: np.nan if one.high is None else one.high - one.mean for name, one in distances.items()}
        points = points.assign(**{f"{measure}_half": points.method.map(halves)})
    return points


def _draw_frontier(panel: Axes, points: pd.DataFrame) -> None:
    line = points[points.method == WISE_GRAFT].sort_values("alpha")
    panel.plot(100 * line.ece, 100 * line.score, color=COLORS[GRAFTED], linewidth=1.0, zorder=2)
    for method, (color, marker, face) in FRONTIER.items():
        if (own := points[points.method == method]).empty:
            continue
        look = {"facecolor": color if face else "white", "edgecolor": color, "marker": marker, "s": 42, "zorder": 3}
        if own.filter(like="half").notna().any(axis=None):
            whiskers = {"linestyle": "none", "zorder": 2.5, "ecolor": color, "elinewidth": 0.8, "capsize": 2}
            panel.errorbar(100 * own.ece, 100 * own.score, 100 * own.score_half, 100 * own.ece_half, **whiskers)
        panel.scatter(100 * own.ece, 100 * own.score, label=FRONTIER_NAMES[method], **look)
    panel.set_xlabel("ECE (%)")
    panel.margins(0.12)
    # whiskers of few tasks go beyond what a share can be, and would leave the points no room
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    lowest = min(0, 100 * points.score.min()) - EDGE
    panel.set(xlim=(max(left, -EDGE), min(right, 100 + EDGE)), ylim=(max(bottom, lowest), min(top, 100 + EDGE)))


FIGURES: dict[str, Callable[[Results], Figure]] = {
    draw.__name__: draw for draw in (accuracy, calibration, reliability, confidence, ood, frontier)
}


def _bars_figure(results: Results, title: str, bars: Bars, lead: str = "") -> Figure:
    """Means over seeds as bars, standard deviations as whiskers, seeds as dots, in rows of at most 7 groups."""
    whiskers = "Bars: mean over seeds; whiskers: standard deviation over seeds; dots: single seeds."
    seeds = whiskers if len(results.seeds) > 1 else "Bars: the one seed; so there are no whiskers."
    marks = f" {marked(bars.metrics)}." if bars.metrics else ""
    marks += " ECE is that of next-token probabilities." if results.generative and bars.measure == "ece" else ""
    size = f"The movement graft has the size of the {results.localizer} one."
    caption = f"{lead}{seeds} {size} n:\u00a0test\u00a0rows.{marks}"
    names = list(bars.labels)
    rows = math.ceil(len(names) / MOST_PER_ROW)
    per_row = max(math.ceil(len(names) / rows), LEAST_PER_ROW)
    drawn = figure(ROW_HEIGHT * rows, title, _details(results, {*bars.frame.task}), caption)
    panels = drawn.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for number, panel in enumerate(panels):
        _draw_row(panel, bars, results.score, names[number * per_row : (number + 1) * per_row])
        panel.set_xlim(-0.55, per_row - 0.45)
    # of all rows together, so once all are drawn: it would hold as the first row needs it
    lowest = min(0, panels[0].get_ylim()[0]) if "mcc" in bars.metrics else 0
    panels[0].set_ylim(lowest, 100 if bars.measure == "score" else None)
    legend(drawn, panels[0])
    return drawn


def _draw_row(panel: Axes, bars: Bars, metric: str, names: list[str]) -> None:
    for number, variant in enumerate(VARIANTS):
        places = np.arange(len(names)) + (number - (len(VARIANTS) - 1) / 2) * BAR
        rows = bars.frame[bars.frame.variant == variant]
        seeds = [100 * rows.loc[rows.group == name, bars.measure].dropna().to_numpy() for name in names]
        means = [values.mean() if len(values) else 0 for values in seeds]
        panel.bar(places, means, BAR, label=words(variant), **bar_style(variant))
        for place, values in zip(places, seeds, strict=True):
            if len(values) > 1:
                whisker = {"color": "black", "linewidth": 1.2, "capsize": 3, "zorder": 3, "clip_on": False}
                panel.errorbar(place, values.mean(), values.std(ddof=1), **whisker)
                beside = place + np.linspace(-BAR / 4, BAR / 4, len(values))
                panel.scatter(
                    beside, values, s=11, facecolor="white", edgecolor="black", linewidth=0.7, zorder=4, clip_on=False
                )
    panel.set_xticks(range(len(names)), [bars.labels[name] for name in names])
    panel.tick_params(axis="x", length=0)
    panel.set_ylabel(score_label(bars.metrics, metric) if bars.measure == "score" else "ECE (%), lower is better")


def _grid(panels: int) -> tuple[int, int]:
    columns = 4 if panels == 4 or panels > 6 else 3
    return math.ceil(panels / columns), columns


def _panels(results: Results, panels: np.ndarray) -> Iterator[tuple[Axes, str]]:
    """A panel for each task; those left over are switched off."""
    for panel in panels.flat[len(results.tasks) :]:
        panel.set_axis_off()
    yield from zip(panels.flat, results.tasks, strict=False)


def _draw_diagram(panel: Axes, bins: pd.DataFrame) -> None:
    diagonal = {"color": "black", "linewidth": 0.8, "linestyle": (0, (1, 2)), "label": "perfect calibration"}
    panel.plot([0, 100], [0, 100], zorder=1, **diagonal)
    for variant in (PRETRAINED, FINETUNED, GRAFTED):
        own, look = bins[(bins.variant == variant) & (bins["count"] >= FEWEST_ROWS)], LINES[variant]
        # one bin makes no line
        marker = {"marker": "_" if len(own) == 1 and not look["marker"] else "", "markersize": LARGEST_MARKER}
        panel.plot(100 * own.confidence, 100 * own.accuracy, **look | marker)
        if look["marker"]:
            # as large as the bins have rows: small ones are mostly chance
            shares = own["count"] / max(own["count"].sum(), 1)
            sizes = SMALLEST_MARKER + (LARGEST_MARKER - SMALLEST_MARKER) * np.sqrt(shares)
            colors = {"facecolor": look.get("markerfacecolor", look["color"]), "edgecolor": look["color"]}
            shape = {"s": sizes**2, "marker": look["marker"], "zorder": look["zorder"], "clip_on": False}
            panel.scatter(100 * own.confidence, 100 * own.accuracy, **shape, **colors)
        panel.plot([], [], label=words(variant), markersize=(SMALLEST_MARKER + LARGEST_MARKER) / 2, **look)
    panel.set(xlim=(0, 104), ylim=(0, 104), xticks=[0, 50, 100], yticks=[0, 25, 50, 75, 100])


def _draw_counts(panel: Axes, bins: pd.DataFrame) -> None:
    width = 100 / (bins.bin.max() + 1)
    for side, variant in enumerate((FINETUNED, GRAFTED)):
        own = bins[bins.variant == variant]
        shares = 100 * own["count"] / max(own["count"].sum(), 1)
        panel.bar(own.bin * width + (side + 0.5) * width / 2, shares, width / 2, **NARROW_BARS[variant])
    panel.set(ylim=(0, 100), yticks=[0, 100])


def _by_task(results: Results, measure: str) -> Bars:
    labels = {task: f"{_name(results, task)}\n{_rows(results.of(task))}" for task in results.tasks}
    return Bars(results.scores.assign(group=results.scores.task), labels, measure)


def _over_tasks(tasks: Sized) -> str:
    """What a title adds to a number of all tasks; nothing where there is one task."""
    return ", mean over tasks" if len(tasks) > 1 else ""


def _name(results: Results, task: str, width: int = 12) -> str:
    return wrapped(name_of(results.tasks[task]), width)


def _panel_title(results: Results, task: str) -> str:
    scores = results.of(task)
    n = f"n = {scores.tokens.min():,} tokens" if results.generative else _rows(scores)
    return f"{wrapped(task, 18)}, {n}"


def _rows(scores: pd.DataFrame) -> str:
    return f"n = {scores.n.min():,}"


def _details(results: Results, tasks: set[str] | None = None) -> str:
    """The number of all tasks, or of these, and the size of their grafts."""
    masks = results.masks[results.masks.task.isin(tasks or {*results.tasks})]
    seeds = masks.groupby("task").seed.nunique()
    many = f"{extent(seeds)} seed{'s' * int(seeds.max() > 1)}"
    return f"{counted(len(seeds), 'task')}, {many}, graft of {sizes_of(masks)} of the graftable parameters"
