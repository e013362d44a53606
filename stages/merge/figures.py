"""Figures of merged models: scores of every method on every task, and how alpha was chosen."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import bounds, counted, extent, percent, whiskers
from stages.lib.report.line_styles import DASHES, LEVELS, explain, framed, line_styles, small_multiples
from stages.lib.report.stats import estimate, mean_of, paired, ranked
from stages.merge.report import Merged, Model

ROW = 0.4
# of a row, over which the points of its tasks are spread
SPREAD = 0.7
MARGINS = 0.9
CURVE_HEIGHT = 3.0
# between the points of two methods, of the range of alphas
APART = 0.012
LINES = {
    PRETRAINED: LEVELS[PRETRAINED],
    GRAFTED: {"color": "#444444", "linewidth": 1.3, "linestyle": DASHES[1], "zorder": 1.5},
    FINETUNED: LEVELS[FINETUNED],
}
LINE_NAMES = {PRETRAINED: "pretrained", GRAFTED: "own grafts", FINETUNED: "own fine-tuned models"}
AVERAGE = {"color": "black", "marker": "|", "markersize": 15, "markeredgewidth": 2.0, "linestyle": "", "zorder": 2.5}


def methods_figure(merged: Merged) -> Figure | None:
    """A panel for each group, a line for each method: tasks as points, their mean with its deviation over seeds."""
    if not merged.methods:
        return None
    tasks = [*dict.fromkeys(task for group in merged.groups.values() for task in group)]
    entries = [*tasks, "mean of tasks", *LINE_NAMES.values()]
    drawn = framed(
        (ROW * len(merged.methods) + MARGINS) * len(merged.groups),
        _best(merged),
        f"Test score of one model on several tasks; {counted(len(merged.seeds), 'seed')}; n = {extent(merged.frames['scores'].n)} test rows a task",
        f"Points: each task, mean over seeds. Bars: mean over tasks{whiskers(merged.seeds)}. "
        "Lines: means of the single-task models, and of the pretrained model with the tasks' heads.",
        entries,
    )
    for panel, group, _, last in small_multiples(drawn, [*merged.groups], columns=1, sharex=True):
        _draw_methods(panel, merged, group, line_styles(tasks))
        panel.set_xlabel("test score (%)" if last else "")
    explain(drawn, drawn.axes)
    return drawn


def _draw_methods(panel: Axes, merged: Merged, group: str, styles: dict) -> None:
    rows, tasks = range(len(merged.methods)), merged.groups[group]
    for number, task in enumerate(tasks):
        scores = [100 * Model(merged, group, name).cells().xs(task, level="task").mean() for name in merged.methods]
        aside = SPREAD * ((number + 0.5) / len(tasks) - 0.5)  # so that no point hides another
        panel.plot(scores, [row + aside for row in rows], label=task, **(styles[task] | {"linestyle": "none"}))
    means = [mean_of(Model(merged, group, name).seeds()) for name in merged.methods]
    spreads = [100 * value.sd for value in means] if len(merged.seeds) > 1 else None
    look = {"label": "mean of tasks", "capsize": 3, "elinewidth": 1.2, **AVERAGE}
    panel.errorbar([100 * value.mean for value in means], rows, xerr=spreads, **look)
    for name, look in LINES.items():
        panel.axvline(100 * Model(merged, group, name).seeds().mean(), label=LINE_NAMES[name], **look)
    panel.set_yticks(rows, [merged.label(name) for name in merged.methods])
    panel.set_ylim(len(merged.methods) - 0.5, -0.5)
    panel.grid(visible=True, axis="x")
    panel.set_title(group, loc="left")


def alphas_figure(merged: Merged) -> Figure | None:
    """Score on dev by the weight of the added vector, a panel for each group."""
    frame = merged.frames["dev"]
    if frame.empty:
        return None
    methods = [name for name in merged.methods if name in {*frame.method}]
    drawn = framed(
        CURVE_HEIGHT,
        f"Alpha that dev chooses: {_chosen(methods, merged)}",
        f"Accuracy on dev / that of the task's own model of the same kind, mean over tasks; {counted(len(merged.seeds), 'seed')}",
        f"At 0 the model is the pretrained one with the tasks' heads{whiskers(merged.seeds)}; set apart sideways.",
        [merged.label(name) for name in methods],
    )
    for panel, group, first, _ in small_multiples(drawn, [*merged.groups], columns=len(merged.groups), sharey=True):
        for number, (name, look) in enumerate(line_styles(methods).items()):
            part = frame[(frame.group == group) & (frame.method == name)].groupby("alpha").normalised
            spreads = 100 * part.std(ddof=1) if len(merged.seeds) > 1 else None
            places = part.mean().index + APART * (number - (len(methods) - 1) / 2)
            panel.errorbar(places, 100 * part.mean(), yerr=spreads, label=merged.label(name), capsize=2, **look)
        panel.set_title(group, loc="left")
        panel.set(xlabel="alpha, the weight of the added vector", ylabel="merged / own model (%)" if first else "")
        panel.set_xticks(sorted(frame.alpha.unique()))
    explain(drawn, drawn.axes)
    return drawn


def _best(merged: Merged) -> str:
    """The method that scores highest in each group, how far above the next, and what the tasks' own models score."""
    parts = []
    for group in merged.groups:
        cells = {name: Model(merged, group, name).cells() for name in (*merged.methods, FINETUNED)}
        own, means = estimate(cells.pop(FINETUNED)).mean, ranked(cells)
        best, *others = means
        told = f"{group}: {merged.label(best)} scores highest, {percent(means[best])} %"
        if others:
            told += f", {paired(cells[best], cells[others[0]]).in_points()} points over {merged.label(others[0])}"
        parts.append(f"{told} (own fine-tuned models {percent(own)} %)")
    return "; ".join(parts)


def _chosen(methods: list[str], merged: Merged) -> str:
    def alphas(group: str, name: str) -> str:
        """Of all seeds; most often they choose the same."""
        return bounds([f"{alpha:g}" for alpha in sorted(Model(merged, group, name).rows.alpha)])

    chosen = {
        group: ", ".join(f"{merged.label(name)} {alphas(group, name)}" for name in methods) for group in merged.groups
    }
    told = "; ".join(f"{group}: {text}" for group, text in chosen.items())
    return told if len(chosen) > 1 else next(iter(chosen.values()))


FIGURES = {"methods": methods_figure, "alphas": alphas_figure}
