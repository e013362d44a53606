"""All figures of multi-task learning as PNG, those without data left out."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.report.format import counted, counts, extent, percent, points, small_percent, whiskers, words
from stages.lib.report.line_styles import explain, framed, small_multiples
from stages.lib.report.style import wrapped
from stages.multitask.contrasts import ONE_MODEL, OTHERS, OWN, TWO_SEEDS, Matrix, matrices
from stages.multitask.heatmap import Block, heatmap
from stages.multitask.load import PURIFIED, SINGLE, UNION, Multitask, are_alike

PANEL = 2.9
# of every pair of bars in the figure of the joint models
LOOKS = {
    "pretrained": {"marker": "_", "color": "#777777", "markersize": 13, "markeredgewidth": 2},
    "single": {"marker": "D", "color": "#0072B2", "markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6},
    "joint": {"marker": "o", "color": "#009E73", "markersize": 8},
}
PAIRS = {
    "similar tasks": {"marker": "o", "facecolor": "#0072B2", "edgecolor": "#0072B2", "zorder": 4},
    "dissimilar tasks": {"marker": "s", "facecolor": "white", "edgecolor": "#D55E00", "zorder": 3},
}
SHIFT = 0.16
BLOCKS = {SINGLE: "region of", UNION: "union of the regions of", PURIFIED: "the same, purified"}


def gain_figure(matrix: Matrix) -> Figure:
    """Figure 8b, c and d: what the region of a row does for the task of a column."""
    blocks = [_gain_block(matrix, kind, title) for kind, title in BLOCKS.items()]
    best, cells = matrix.highest_own()
    own, others = (percent(matrix.gain(kind).mean, 0) for kind in (OWN, OTHERS))
    found = f"In {best} of {counted(cells, 'cell')} a task gains most from its own region ({own} % on average, from others {others} %)"
    least = f"{100 * matrix.data.least_gain:g} points"
    return heatmap(
        [block for block in blocks if block.grid.full.to_numpy().any()],
        title=found if cells else f"No relative gains: the joint model gained less than {least} on every task",
        details=f"Relative gain in % of a task (column) from a region (row): {_details(matrix)}",
        caption=f"0: pretrained, 100: joint model; a cell of the title is a task in a seed. {_below(matrix, 'seeds')}",
        across="tested on",
        frame="the row's own tasks",
        mark="similar tasks",
        unknown=f"no value, joint model gained less than {least}",
    )


def _gain_block(matrix: Matrix, kind: str, title: str) -> Block:
    data = matrix.data
    members = {task: [task] for task in data.tasks} if kind == SINGLE else data.unions
    own = {(name, task) for name, tasks in members.items() for task in tasks}
    return Block(title, matrix.gain_grid(kind), own, _similar(data) if kind == SINGLE else set())


def overlap_figure(matrix: Matrix) -> Figure:
    """Figure 8a; its diagonal, 1 for any region with itself, is the same task in different seeds."""
    two_tasks, one_task = (matrix.overlap(kind).mean for kind in (ONE_MODEL, TWO_SEEDS))
    chance = matrix.overlaps[ONE_MODEL].chance.mean()
    same = "" if one_task is None else f", those of one task in two seeds by {percent(one_task)} %"
    diagonal = {(task, task) for task in matrix.data.tasks}
    return heatmap(
        [Block("region of", matrix.overlap_grid, diagonal, _similar(matrix.data))],
        title=f"Regions of two tasks overlap by {percent(two_tasks)} %{same}; random ones by {small_percent(chance)}",
        details=f"Share of the column's region that lies in the row's, in %: {_details(matrix)}",
        caption="Diagonal: regions of one task in two seeds, as much as two joint models agree on. All else: two tasks in one "
        f"joint model. {_below(matrix, 'seeds, on the diagonal over pairs of seeds')}",
        across="share of the region of",
        frame="one task, two seeds",
        mark="similar tasks",
        unknown="takes two seeds",
    )


def _below(matrix: Matrix, over: str) -> str:
    return f"Below a value: standard deviation over {over}, or n of the seeds that have one." * (
        len(matrix.data.seeds) > 1
    )


def _similar(data: Multitask) -> set[tuple[str, str]]:
    return {pair for pair in permutations(data.tasks, 2) if are_alike(data.groups, *pair)}


def _details(matrix: Matrix) -> str:
    return f"{matrix.title} of the graftable parameters; {counts(task=len(matrix.data.tasks), seed=len(matrix.data.seeds))}"


def joint_figure(data: Multitask) -> Figure | None:
    """Accuracy of one model for all tasks beside one for each."""
    if data.levels.empty:
        return None
    gaps = (data.levels.joint - data.levels.single).groupby(data.levels.paradigm, sort=False).mean()
    found = ", ".join(f"{points(gap)} points ({words(paradigm)})" for paradigm, gap in gaps.items())
    drawn = framed(
        PANEL * len(gaps),
        f"One model for all tasks against one for each: {found} on average",
        f"{counts(task=len(data.tasks), seed=len(data.seeds))}; n = {extent(data.levels.n)} test rows a task",
        f"Points: mean over seeds{whiskers(data.seeds)}. Pretrained: under the joint model's heads.",
        [*LOOKS],
    )
    for panel, paradigm, _, _ in small_multiples(drawn, gaps.index, columns=1, sharex=True):
        _draw_levels(panel, data, data.levels[data.levels.paradigm == paradigm])
        panel.set_title(words(paradigm))
    explain(drawn, drawn.axes[:1])
    return drawn


def _draw_levels(panel: Axes, data: Multitask, levels: pd.DataFrame) -> None:
    groups, places = levels.groupby("task"), np.arange(len(data.tasks))
    for number, (name, look) in enumerate(LOOKS.items()):
        mean, sd = (100 * values.loc[data.tasks] for values in (groups[name].mean(), groups[name].std(ddof=1)))
        error = sd if sd.notna().all() else None
        shifted = places + SHIFT * (number - 1)
        panel.errorbar(shifted, mean, error, linestyle="", capsize=3, elinewidth=1, label=name, **look)
    panel.set_xticks(places, [wrapped(task, 14) for task in data.tasks], rotation=30 if len(places) > 6 else 0)
    panel.set_ylabel("accuracy (%)")
    panel.margins(x=0.08, y=0.12)


def similarity_figure(data: Multitask) -> Figure | None:
    """Every ordered pair of tasks: overlap of their regions against what one's graft does for the other."""
    chosen = [matrix for matrix in matrices(data) if matrix.similarity.units]
    if not chosen:
        return None
    rhos = ", ".join(f"{matrix.rho['mean']:+.2f} ({words(matrix.localizer)})" for matrix in chosen)
    drawn = framed(
        PANEL * -(-len(chosen) // 2),
        f"What a task gains from another's region, by how much the two overlap: Spearman's rho {rhos}",
        f"{counts(task=len(data.tasks), seed=len(data.seeds))}; a point is an ordered pair of tasks, mean over seeds",
        "Pairs that share a task are not independent, so the 95 % interval of rho is the jackknife's over tasks.",
        [*PAIRS],
    )
    for panel, matrix, first, _ in small_multiples(drawn, chosen, min(2, len(chosen))):
        _draw_pairs(panel, matrix)
        panel.set_ylabel("relative gain (%)" if first else "")
    explain(drawn, drawn.axes)
    return drawn


def _draw_pairs(panel: Axes, matrix: Matrix) -> None:
    overlap, gain = matrix.overlap_grid.mean, matrix.gain_grid(SINGLE).mean
    every, alike = {*permutations(matrix.data.tasks, 2)}, _similar(matrix.data)
    for (label, look), belong in zip(PAIRS.items(), (every & alike, every - alike), strict=True):
        x, y = ([100 * table.at[pair] for pair in sorted(belong)] for table in (overlap, gain))
        panel.scatter(x, y, s=34, linewidths=1.3, label=label, **look)
    panel.axhline(0, color="#777777", linewidth=1)
    panel.set_xlabel("overlap of regions (%)")
    rho, pairs = matrix.rho, counted(matrix.similarity.units, "pair")
    interval = f"{rho['low']:+.2f} to {rho['high']:+.2f}" if "low" in rho else "no interval"
    panel.set_title(f"{matrix.title}\nrho {rho['mean']:+.2f} ({interval}), {pairs}")


def makers(data: Multitask) -> dict[str, Callable[[Multitask], Figure | None]]:
    """Name of each figure -> how it is drawn; gain_<matrix> and overlap_<matrix> for every matrix."""
    drawn: dict[str, Callable[[Multitask], Figure | None]] = {"joint": joint_figure, "similarity": similarity_figure}
    for matrix in matrices(data):
        drawn[f"gain_{matrix.name}"] = lambda _, matrix=matrix: gain_figure(matrix)
        drawn[f"overlap_{matrix.name}"] = lambda _, matrix=matrix: overlap_figure(matrix)
    return drawn
