"""All figures of multi-task learning as PNG, those without data left out."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.report.format import counted, percent, small_percent
from stages.lib.report.line_styles import explain, framed, grid
from stages.multitask.contrasts import SAME_MODEL, TWO_SEEDS, Matrix, matrices
from stages.multitask.heatmap import Block, Words, heatmap
from stages.multitask.load import PURIFIED, SINGLE, UNION, Multitask

PANEL = 2.9
# of every pair of bars in the figure of the joint models
LOOKS = {
    "pretrained": {"marker": "_", "color": "#777777", "markersize": 13, "markeredgewidth": 2},
    "single": {"marker": "D", "color": "#0072B2", "markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6},
    "joint": {"marker": "o", "color": "#009E73", "markersize": 8},
}
SHIFT = 0.16


def gain_figure(matrix: Matrix) -> Figure:
    """Figure 8b, c and d: what the region of a row does for the task of a column."""
    blocks = [_gain_block(matrix, kind, title) for kind, title in BLOCKS.items()]
    blocks = [block for block in blocks if block.grid.full.to_numpy().any()]
    least = f"{100 * matrix.data.least_gain:g} points"
    words = Words(
        title="Relative gain in % of a task (column) from a region (row); paper: highest on the diagonal",
        details=_details(matrix),
        caption="0: pretrained, 100: joint model; below 0 white, above 100 as dark as 100. Below a value: standard deviation "
        "over seeds, or n of the seeds that have one. No value: the joint model gained too little to divide by.",
        across="tested on",
        frame="the row's own tasks",
        mark="similar tasks",
        unknown=f"no value, gain below {least}",
    )
    return heatmap(blocks, words, 1.0)


BLOCKS = {
    SINGLE: "region of",
    UNION: "union of the regions of",
    PURIFIED: "the same, purified",
}


def _gain_block(matrix: Matrix, kind: str, title: str) -> Block:
    data = matrix.data
    members = {task: [task] for task in data.tasks} if kind == SINGLE else data.unions
    own = {(name, task) for name, tasks in members.items() for task in tasks}
    similar = _similar(data) if kind == SINGLE else set()
    return Block(title, matrix.gain_grid(kind), own, similar)


def overlap_figure(matrix: Matrix) -> Figure:
    """Figure 8a; its diagonal, 1 for any region with itself, is the same task in different seeds."""
    values = matrix.overlap_grid
    chance = matrix.overlap_rows(SAME_MODEL).chance.mean()
    ceiling = matrix.overlap_rows(TWO_SEEDS).overlap.mean()
    top = float(np.nanmax([*values.mean.to_numpy(float).ravel(), 0.01]))
    known = "not known from one seed" if pd.isna(ceiling) else f"{percent(ceiling)} %"
    words = Words(
        title="Overlap in %: how much of the column's region lies in the row's; paper: most for similar tasks",
        details=f"{_details(matrix)}; chance {small_percent(chance)}, one task in two seeds {known}",
        caption="Diagonal: regions of one task in two seeds, as much as two joint models agree on. All else: two tasks in one "
        "joint model. Below a value: standard deviation over seeds, on the diagonal over pairs of seeds.",
        across="share of the region of",
        frame="one task, two seeds",
        mark="similar tasks",
        unknown="takes two seeds",
    )
    diagonal = {(task, task) for task in matrix.data.tasks}
    return heatmap([Block("region of", values, diagonal, _similar(matrix.data))], words, top)


def _similar(data: Multitask) -> set[tuple[str, str]]:
    return {(one, other) for one in data.tasks for other in data.tasks if one != other and data.alike(one, other)}


def _details(matrix: Matrix) -> str:
    size = f"{counted(len(matrix.data.tasks), 'task')}, mean over {counted(len(matrix.data.seeds), 'seed')}"
    return f"{matrix.title} of the graftable parameters; {size}"


def joint_figure(data: Multitask) -> Figure | None:
    """Accuracy of one model for all tasks beside one for each."""
    if data.levels.empty:
        return None
    paradigms = [*data.levels.paradigm.unique()]
    title = "Accuracy of one model for all tasks beside one model for each"
    details = f"{counted(len(data.tasks), 'task')}, {counted(len(data.seeds), 'seed')}"
    caption = (
        "Points: mean over seeds; whiskers: standard deviation over seeds. Pretrained: under the joint model's heads."
    )
    drawn = framed(PANEL * len(paradigms), title, details, caption, [*LOOKS])
    panels = drawn.subplots(len(paradigms), 1, squeeze=False, sharex=True)[:, 0]
    for paradigm, panel in zip(paradigms, panels, strict=True):
        _draw_levels(panel, data, data.levels[data.levels.paradigm == paradigm])
        panel.set_title(paradigm)
    explain(drawn, panels[:1])
    return drawn


def _draw_levels(panel: Axes, data: Multitask, levels: pd.DataFrame) -> None:
    groups = levels.groupby("task")
    places = np.arange(len(data.tasks))
    for number, (name, look) in enumerate(LOOKS.items()):
        mean, sd = (100 * values.loc[data.tasks] for values in (groups[name].mean(), groups[name].std(ddof=1)))
        shifted = places + SHIFT * (number - 1)
        panel.errorbar(shifted, mean, sd.fillna(0), linestyle="", capsize=3, elinewidth=1, label=name, **look)
    panel.set_xticks(places, data.tasks, rotation=30 if len(places) > 6 else 0)
    panel.set_ylabel("accuracy (%)")
    panel.margins(x=0.08, y=0.12)


def similarity_figure(data: Multitask) -> Figure | None:
    """Every ordered pair of tasks: overlap of their regions against what one's graft does for the other."""
    chosen = [matrix for matrix in matrices(data) if matrix.similarity.pairs]
    if not chosen:
        return None
    rows, columns = grid(len(chosen)) if len(chosen) > 1 else (1, 1)
    title = "Overlap and transfer: what a task gains from another's region, by how much the two overlap"
    caption = "Each point is an ordered pair of different tasks, means over seeds. rho: Spearman's, with its bootstrap interval over tasks."
    details = f"{counted(len(data.tasks), 'task')}, {counted(len(data.seeds), 'seed')}"
    drawn = framed(PANEL * rows, title, details, caption, ["similar tasks", "dissimilar tasks"])
    panels = drawn.subplots(rows, columns, squeeze=False)
    for place, panel in enumerate(panels.flat):
        if place >= len(chosen):
            panel.set_axis_off()
            continue
        _draw_pairs(panel, chosen[place])
        if place % columns == 0:
            panel.set_ylabel("relative gain (%)")
        if place + columns >= len(chosen):
            panel.set_xlabel("overlap of regions (%)")
    explain(drawn, panels.flat[: len(chosen)])
    return drawn


def _draw_pairs(panel: Axes, matrix: Matrix) -> None:
    overlap, gain, tasks = matrix.overlap_grid.mean, matrix.gain_grid(SINGLE).mean, matrix.data.tasks
    alike = _similar(matrix.data)
    pairs = [(one, other) for one in tasks for other in tasks if one != other]
    looks = {
        "similar tasks": (lambda pair: pair in alike, {"marker": "o", "facecolor": "#0072B2", "edgecolor": "#0072B2"}),
        "dissimilar tasks": (
            lambda pair: pair not in alike,
            {"marker": "s", "facecolor": "white", "edgecolor": "#D55E00"},
        ),
    }
    for label, (belongs, look) in looks.items():
        chosen = [pair for pair in pairs if belongs(pair)]
        x, y = ([100 * table.at[pair] for pair in chosen] for table in (overlap, gain))
        panel.scatter(x, y, s=34, linewidths=1.3, label=label, zorder=4 - (label != "similar tasks"), **look)
    panel.axhline(0, color="#777777", linewidth=1)
    value = matrix.similarity
    rho = "rho not known" if value.rho is None else f"rho {value.rho:+.2f}"
    interval = "" if value.low is None else f" ({value.low:+.2f} to {value.high:+.2f})"
    panel.set_title(f"{matrix.title}\n{rho}{interval}, {value.pairs} pairs")


def makers(data: Multitask) -> dict[str, Callable[[Multitask], Figure | None]]:
    """Name of each figure -> how it is drawn; gain_<matrix> and overlap_<matrix> for every matrix."""
    drawn: dict[str, Callable[[Multitask], Figure | None]] = {"joint": joint_figure, "similarity": similarity_figure}
    for matrix in matrices(data):
        drawn[f"gain_{matrix.name}"] = lambda _, matrix=matrix: gain_figure(matrix)
        drawn[f"overlap_{matrix.name}"] = lambda _, matrix=matrix: overlap_figure(matrix)
    return drawn
