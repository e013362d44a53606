"""All figures of multi-task learning as PNG, those without data left out."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.report.format import counted, percent, small_percent
from stages.lib.report.line_styles import explain, framed, grid
from stages.lib.report.style import save, styled
from stages.multitask.report.collecting import PURIFIED, SINGLE, UNION, Multitask
from stages.multitask.report.contrasts import SAME_MODEL, TWO_SEEDS, overlap_rows
from stages.multitask.report.heatmap import Block, Words, heatmap
from stages.multitask.report.matrices import Key, called, gain_grid, overlap_grid, similarity

PANEL = 2.9
# of every pair of bars in the figure of the joint models
LOOKS = {
    "pretrained": {"marker": "_", "color": "#777777", "markersize": 13, "markeredgewidth": 2},
    "single": {"marker": "D", "color": "#0072B2", "markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6},
    "joint": {"marker": "o", "color": "#009E73", "markersize": 8},
}
SHIFT = 0.16


def figures(found: Multitask, folder: Path) -> list[Path]:
    """Write the figures there are data for into `folder`; gives their paths."""
    made = {"joint": joint_figure, "similarity": similarity_figure}
    drawings = {name: (draw, ()) for name, draw in made.items()}
    for key in found.matrices:
        name = "_".join(map(str, key))
        drawings |= {f"gain_{name}": (gain_figure, (key,)), f"overlap_{name}": (overlap_figure, (key,))}
    written = []
    for name, (draw, which) in drawings.items():
        with styled():
            drawn = draw(found, *which)
            if drawn is not None:
                save(drawn, folder / f"{name}.png")
                written.append(folder / f"{name}.png")
    return written


def gain_figure(found: Multitask, key: Key) -> Figure:
    """Figure 8b, c and d: what the region of a row does for the task of a column."""
    blocks = [_gain_block(found, key, kind, title) for kind, title in BLOCKS.items()]
    blocks = [block for block in blocks if block.grid.full.to_numpy().any()]
    least = f"{100 * found.least_gain:g} points"
    words = Words(
        title="Relative gain in % of a task (column) from a region (row); paper: highest on the diagonal",
        details=_details(found, key),
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


def _gain_block(found: Multitask, key: Key, kind: str, title: str) -> Block:
    members = {task: [task] for task in found.tasks} if kind == SINGLE else found.unions
    own = {(name, task) for name, tasks in members.items() for task in tasks}
    similar = _similar(found) if kind == SINGLE else set()
    return Block(title, gain_grid(found, key, kind), own, similar)


def overlap_figure(found: Multitask, key: Key) -> Figure:
    """Figure 8a; its diagonal, 1 for any region with itself, is the same task in different seeds."""
    values = overlap_grid(found, key)
    chance = overlap_rows(found, key, SAME_MODEL).chance.mean()
    ceiling = overlap_rows(found, key, TWO_SEEDS).overlap.mean()
    top = float(np.nanmax([*values.mean.to_numpy(float).ravel(), 0.01]))
    known = "not known from one seed" if pd.isna(ceiling) else f"{percent(ceiling)} %"
    words = Words(
        title="Overlap in %: how much of the column's region lies in the row's; paper: most for similar tasks",
        details=f"{_details(found, key)}; chance {small_percent(chance)}, one task in two seeds {known}",
        caption="Diagonal: regions of one task in two seeds, as much as two joint models agree on. All else: two tasks in one "
        "joint model. Below a value: standard deviation over seeds, on the diagonal over pairs of seeds.",
        across="share of the region of",
        frame="one task, two seeds",
        mark="similar tasks",
        unknown="takes two seeds",
    )
    diagonal = {(task, task) for task in found.tasks}
    return heatmap([Block("region of", values, diagonal, _similar(found))], words, top)


def _similar(found: Multitask) -> set[tuple[str, str]]:
    return {(one, other) for one in found.tasks for other in found.tasks if one != other and found.alike(one, other)}


def _details(found: Multitask, key: Key) -> str:
    size = f"{counted(len(found.tasks), 'task')}, mean over {counted(len(found.seeds), 'seed')}"
    return f"{called(key)} of the graftable parameters; {size}"


def joint_figure(found: Multitask) -> Figure | None:
    """Accuracy of one model for all tasks beside one for each."""
    if found.levels.empty:
        return None
    paradigms = [*found.levels.paradigm.unique()]
    title = "Accuracy of one model for all tasks beside one model for each"
    details = f"{counted(len(found.tasks), 'task')}, {counted(len(found.seeds), 'seed')}"
    caption = (
        "Points: mean over seeds; whiskers: standard deviation over seeds. Pretrained: under the joint model's heads."
    )
    drawn = framed(PANEL * len(paradigms), title, details, caption, [*LOOKS])
    panels = drawn.subplots(len(paradigms), 1, squeeze=False, sharex=True)[:, 0]
    for paradigm, panel in zip(paradigms, panels, strict=True):
        _draw_levels(panel, found, found.levels[found.levels.paradigm == paradigm])
        panel.set_title(paradigm)
    explain(drawn, panels[:1])
    return drawn


def _draw_levels(panel: Axes, found: Multitask, levels: pd.DataFrame) -> None:
    groups = levels.groupby("task")
    places = np.arange(len(found.tasks))
    for number, (name, look) in enumerate(LOOKS.items()):
        mean, sd = (100 * values.loc[found.tasks] for values in (groups[name].mean(), groups[name].std(ddof=1)))
        shifted = places + SHIFT * (number - 1)
        panel.errorbar(shifted, mean, sd.fillna(0), linestyle="", capsize=3, elinewidth=1, label=name, **look)
    panel.set_xticks(places, found.tasks, rotation=30 if len(places) > 6 else 0)
    panel.set_ylabel("accuracy (%)")
    panel.margins(x=0.08, y=0.12)


def similarity_figure(found: Multitask) -> Figure | None:
    """Every ordered pair of tasks: overlap of their regions against what one's graft does for the other."""
    keys = [key for key in found.matrices if similarity(found, key).pairs]
    if not keys:
        return None
    rows, columns = grid(len(keys)) if len(keys) > 1 else (1, 1)
    title = "Overlap and transfer: what a task gains from another's region, by how much the two overlap"
    caption = "Each point is an ordered pair of different tasks, means over seeds. rho: Spearman's, with its bootstrap interval over tasks."
    details = f"{counted(len(found.tasks), 'task')}, {counted(len(found.seeds), 'seed')}"
    drawn = framed(PANEL * rows, title, details, caption, ["similar tasks", "dissimilar tasks"])
    panels = drawn.subplots(rows, columns, squeeze=False)
    for place, panel in enumerate(panels.flat):
        if place >= len(keys):
            panel.set_axis_off()
            continue
        _draw_pairs(panel, found, keys[place])
        if place % columns == 0:
            panel.set_ylabel("relative gain (%)")
        if place + columns >= len(keys):
            panel.set_xlabel("overlap of regions (%)")
    explain(drawn, panels.flat[: len(keys)])
    return drawn


def _draw_pairs(panel: Axes, found: Multitask, key: Key) -> None:
    overlap, gain = overlap_grid(found, key).mean, gain_grid(found, key, SINGLE).mean
    alike = _similar(found)
    pairs = [(one, other) for one in found.tasks for other in found.tasks if one != other]
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
    value = similarity(found, key)
    rho = "rho not known" if value.rho is None else f"rho {value.rho:+.2f}"
    interval = "" if value.low is None else f" ({value.low:+.2f} to {value.high:+.2f})"
    panel.set_title(f"{called(key)}\n{rho}{interval}, {value.pairs} pairs")
