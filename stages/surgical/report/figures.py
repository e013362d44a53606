"""Figures of the surgical report as PNG, those of stages that are off left out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import counted
from stages.lib.report.line_styles import LEVELS, explain, framed, grid, line_style
from stages.lib.report.style import COLORS, HATCHES, save, styled
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical

HEIGHT, HALF = 2.6, 0.38
WHISKERS = "Whiskers: standard deviation over seeds."
SCORE, GRAFT, CHANCE = "FIM score", "learned graft", "chance"
# look of a kind of selection, by its number among the lines of a figure
KINDS = {"top": 0, "bottom": 5, "random": 8, "first": 3, "middle": 1, "last": 4}
LEVEL_LOOKS = {"all": LEVELS[FINETUNED], "none": LEVELS[PRETRAINED]}
LEVEL_NAMES = {"all": "all layers", "none": "no layer"}
MAJORITY_LOOK = {"color": "#0072B2", "linewidth": 1.0, "linestyle": (0, (6, 2)), "zorder": 1.2}
MAJORITY = "most frequent label"


def figures(data: Surgical, folder: Path) -> list[Path]:
    """Write the figures there are data for into `folder`; gives their paths."""
    drawers: dict[str, tuple[pd.DataFrame, Callable[[Surgical], Figure]]] = {
        "layers": (data.fim, layer_figure),
        "selections": (data.surgery[data.surgery["size"].notna()], selection_figure),
        "robustness": (data.robustness, robustness_figure),
    }
    written = []
    for name, (frame, draw) in drawers.items():
        if len(frame):
            with styled():
                save(draw(data), folder / f"{name}.png")
            written.append(folder / f"{name}.png")
    return written


def layer_figure(data: Surgical) -> Figure:
    """Share of each layer in the scores and in the learned mask, per task."""
    tasks, surgery = [*dict.fromkeys(data.fim.task)], data.settings.surgery
    title = "Layers: is the learned graft where the Fisher information is highest?"
    details = (
        f"{counted(len(tasks), 'task')}, {counted(data.fim.seed.nunique(), 'seed')}, score of {surgery.score.target}, "
        f"{surgery.score.aggregation}, over {surgery.score.examples} examples"
    )
    rows, columns = grid(len(tasks))
    caption = (
        f"Each adds up to 100 % over the layers. {WHISKERS} Chance: a random mask's share, of parameters per layer."
    )
    drawn = framed(HEIGHT * rows, title, details, caption, [SCORE, GRAFT, CHANCE])
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(panels.flat):
        if place >= len(tasks):
            panel.set_axis_off()
            continue
        _draw_layers(panel, *_shares(data, tasks[place]))
        panel.set_title(tasks[place])
        panel.tick_params(labelbottom=True)
        if place + columns >= len(tasks):
            panel.set_xlabel("layer")
        if place % columns == 0:
            panel.set_ylabel("share (%)")
    explain(drawn, panels.flat[:1])
    return drawn


def _shares(data: Surgical, task: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Seeds by layers: share of the score and of the mask; and the share of a random mask by layer."""
    scores = data.chosen().loc[[task]].unstack("layer")
    regions = data.regions[data.regions.task == task]
    masks = regions.pivot(index="seed", columns="layer", values="share")
    return scores.div(scores.sum(axis=1), axis=0), masks, regions.groupby("layer").chance.mean()


def _draw_layers(panel: Axes, scores: pd.DataFrame, masks: pd.DataFrame, chance: pd.Series) -> None:
    places = np.arange(len(scores.columns))
    looks = {SCORE: COLORS[FINETUNED], GRAFT: COLORS[GRAFTED]}
    for (label, color), shares, offset in zip(looks.items(), (scores, masks), (-0.5, 0.5), strict=True):
        if shares.empty:
            continue
        hatch = HATCHES[GRAFTED] if label == GRAFT else ""
        panel.bar(
            places + offset * HALF, 100 * shares.mean(), HALF, yerr=100 * shares.std(ddof=1).fillna(0), color=color,
            hatch=hatch, edgecolor="black", linewidth=0.6, label=label, capsize=2, error_kw={"elinewidth": 1.0},
        )  # fmt: skip
    if len(chance):
        panel.step(places, 100 * chance, where="mid", color="black", linewidth=1.4, linestyle=(0, (4, 2)), label=CHANCE)
    every = max(len(places) // 6, 1)
    panel.set_xticks(places[::every], [str(layer + 1) for layer in places[::every]])


def selection_figure(data: Surgical) -> Figure:
    """Score against the number of trained layers, per task, with all layers and none for comparison."""
    runs = data.surgery
    tasks = [*dict.fromkeys(runs.task)]
    kinds = [kind for kind in KINDS if kind in {*runs.kind}]
    title = "Score by trained layers; the paper's claim: the highest FIM scores almost match all layers"
    draws = f", {counted(data.settings.surgery.draws, 'draw')} of random layers" if "random" in kinds else ""
    details = (
        f"{counted(len(tasks), 'task')}, {counted(runs.seed.nunique(), 'seed')}, n = {_tested(runs)} test rows{draws}"
    )
    labels = [*kinds, *LEVEL_NAMES.values(), MAJORITY]
    caption = "Whiskers: standard deviation over seeds; of random layers over seeds and draws. Points are moved apart a little."
    rows, columns = grid(len(tasks))
    drawn = framed(1.25 * HEIGHT * rows, title, details, caption, labels)
    panels = drawn.subplots(rows, columns, squeeze=False, sharex=True)
    for place, panel in enumerate(panels.flat):
        if place >= len(tasks):
            panel.set_axis_off()
            continue
        _draw_selections(panel, runs[runs.task == tasks[place]], kinds)
        panel.set_title(tasks[place])
        panel.set_xlabel("trained layers")
        panel.tick_params(labelbottom=True)
        if place % columns == 0:
            panel.set_ylabel("score (%)")
    explain(drawn, panels.flat)
    return drawn


def _draw_selections(panel: Axes, runs: pd.DataFrame, kinds: list[str]) -> None:
    for number, kind in enumerate(kinds):
        scores = runs[runs.kind == kind].groupby("size")["score"].agg(["mean", "std"])
        apart = 0.07 * (number - (len(kinds) - 1) / 2)
        look = line_style(KINDS[kind])
        panel.errorbar(
            scores.index + apart, 100 * scores["mean"], 100 * scores["std"].fillna(0), label=kind, capsize=2,
            elinewidth=1.0, **look,
        )  # fmt: skip
    for name, look in LEVEL_LOOKS.items():
        level = runs[runs.selection == name]["score"]
        if len(level):
            panel.axhline(100 * level.mean(), label=LEVEL_NAMES[name], **look)
    panel.axhline(100 * runs.majority.mean(), label=MAJORITY, **MAJORITY_LOOK)
    panel.set_xticks(sorted(map(int, runs["size"].dropna().unique())))


def robustness_figure(data: Surgical) -> Figure:
    """Agreement with the first ranking, and movement, against the steps of fine-tuning."""
    frame = ranking.checkpoints(data)
    tasks = [*dict.fromkeys(frame.task)]
    title = "Robustness: rank correlation of the layers' scores with those before training"
    details = f"{counted(len(tasks), 'task')}, {counted(frame.seed.nunique(), 'seed')}, all layers trained, {counted(data.layers, 'layer')}"
    caption = f"Agreement: Spearman correlation of the FIM scores with those before training; dashed: surgical.steady. {WHISKERS}"
    drawn = framed(1.2 * HEIGHT, title, details, caption, tasks)
    left, right = drawn.subplots(1, 2, squeeze=False)[0]
    for number, task in enumerate(tasks):
        rows = frame[frame.task == task].groupby("step")
        for panel, values, scale in ((left, rows["spearman"], 1), (right, rows["moved"], 100)):
            panel.errorbar(
                [*rows.groups], scale * values.mean(), scale * values.std(ddof=1).fillna(0), label=task, capsize=2,
                elinewidth=1.0, **line_style(number),
            )  # fmt: skip
    left.axhline(data.settings.surgical.steady, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
    spread = frame.groupby(["task", "step"]).spearman.agg(["mean", "std"]).fillna({"std": 0})
    left.set_ylim(min(0.0, (spread["mean"] - spread["std"]).min()) - 0.05, 1.05)
    for panel, label in ((left, "agreement with step 0"), (right, "movement (% of the norm)")):
        panel.set_xlabel("step")
        panel.set_ylabel(label)
    explain(drawn, [left])
    return drawn


def _tested(runs: pd.DataFrame) -> str:
    low, high = runs.n.min(), runs.n.max()
    return str(low) if low == high else f"{low} to {high}"
