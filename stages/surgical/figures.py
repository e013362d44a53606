"""Figures of the surgical report, those of stages that are off left out."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import counted, counts, extent, percent
from stages.lib.report.line_styles import LEVELS, explain, framed, grid, line_style, small_multiples
from stages.lib.report.stats import estimate
from stages.lib.report.style import bar_style
from stages.surgical.frames import Surgical, layer_text
from stages.surgical.rankings import bridges
from stages.surgical.report import few, kept_by, steady, unranked

HEIGHT, HALF = 2.6, 0.38
SCORE, CHANCE = "FIM score", "chance"
# look of a kind of selection, by its number among the lines of a figure
KINDS = {"top": 0, "bottom": 5, "random": 8, "first": 3, "middle": 1, "last": 4}
LEVEL_LOOKS = {"all": ("all layers", LEVELS[FINETUNED]), "none": ("no layer", LEVELS[PRETRAINED])}
MAJORITY = "most frequent label"
MAJORITY_LOOK = {"color": "#0072B2", "linewidth": 1.0, "linestyle": (0, (6, 2)), "zorder": 1.2}
DASHED = {"color": "black", "linestyle": (0, (4, 2))}


def layer_figure(data: Surgical) -> Figure:
    """Share of each layer in the scores and in the mask, per task."""
    tasks, score = [*dict.fromkeys(data.fim.task)], data.surgery.score
    drawn = framed(
        HEIGHT * grid(len(tasks))[0], _layer_title(data),
        f"{counts(task=len(tasks), seed=data.fim.seed.nunique())}, FIM score over {score.examples} examples ({score.target}, {score.aggregation})",
        "FIM: Fisher information matrix. Each adds up to 100 % over the layers. Chance: a random mask's share, of parameters per "
        f"layer.{_whiskers(data.fim)}",
        [SCORE, _graft(data), CHANCE],
    )  # fmt: skip
    for panel, task, first, last in small_multiples(drawn, tasks, sharex=True, sharey=True):
        _draw_layers(panel, data, task)
        panel.set(title=task, xlabel="layer" if last else "", ylabel="share (%)" if first else "")
        panel.tick_params(labelbottom=True)
    explain(drawn, drawn.axes[:1])
    return drawn


def _graft(data: Surgical) -> str:
    return f"{data.localizer} graft"


def _layer_title(data: Surgical) -> str:
    """A title: rank correlation of the graft's layers with the scores; without masks, the layer of the highest score."""
    found = bridges(data)["score_graft"]
    if found.n and not unranked(data):
        return (
            f"Over the layers, FIM score and share of the {_graft(data)} have a rank correlation of {found.mean:+.2f}"
        )
    means = data.chosen().groupby("layer").mean()
    return f"Layer {layer_text([means.idxmax()])} has the highest FIM score: {percent(means.max() / means.sum())} % of the sum"


def _whiskers(frame: pd.DataFrame, *more: str) -> str:
    over = [*["seeds"] * (frame.seed.nunique() > 1), *more]
    return f" Whiskers: standard deviation over {' and '.join(over)}." if over else ""


def _draw_layers(panel: Axes, data: Surgical, task: str) -> None:
    scores = data.chosen().loc[[task]].unstack("layer")
    regions = data.regions[data.regions.task == task]
    masks, chance = regions.pivot(index="seed", columns="layer", values="share"), regions.groupby("layer").chance.mean()
    bars = (SCORE, FINETUNED, scores.div(scores.sum(axis=1), axis=0), -0.5), (_graft(data), GRAFTED, masks, 0.5)
    places = np.arange(len(scores.columns))
    for label, variant, shares, offset in bars:
        if len(shares):
            panel.bar(
                places + offset * HALF, 100 * shares.mean(), HALF, yerr=100 * shares.std(ddof=1), label=label, capsize=2,
                error_kw={"elinewidth": 1.0}, **bar_style(variant),
            )  # fmt: skip
    if len(chance):
        edges = np.arange(len(chance) + 1) - 0.5
        panel.stairs(100 * chance, edges, baseline=None, linewidth=1.4, label=CHANCE, **DASHED)
    every = max(len(places) // 6, 1)
    panel.set_xticks(places[::every], [str(layer + 1) for layer in places[::every]])


def selection_figure(data: Surgical) -> Figure | None:
    """Score against the number of trained layers, per task, with all layers and none for comparison."""
    runs = data.runs
    if runs["size"].isna().all():
        return None
    tasks, kinds = [*dict.fromkeys(runs.task)], [kind for kind in KINDS if kind in {*runs.kind}]
    draws = f", {counted(data.surgery.draws, 'draw')} of random layers" if "random" in kinds else ""
    random = ["draws of random layers"] * bool(draws)
    drawn = framed(
        1.25 * HEIGHT * grid(len(tasks))[0], _selection_title(data),
        f"{counts(task=len(tasks), seed=runs.seed.nunique())}, n = {extent(runs.n)} test rows{draws}",
        f"top, bottom: layers of the highest and the lowest FIM score. Points are moved apart a little.{_whiskers(runs, *random)}",
        [*kinds, *(name for name, _ in LEVEL_LOOKS.values()), MAJORITY],
    )  # fmt: skip
    for panel, task, first, _ in small_multiples(drawn, tasks, sharex=True):
        _draw_selections(panel, runs[runs.task == task], kinds)
        panel.set(title=task, xlabel="trained layers", ylabel="score (%)" if first else "")
        panel.tick_params(labelbottom=True)
    explain(drawn, drawn.axes)
    return drawn


def _selection_title(data: Surgical) -> str:
    """Scores kept by few layers, and by random ones of their number."""
    size = few(data)
    names = {
        f"top_{size}": "highest FIM scores",
        f"bottom_{size}": "lowest",
        f"random_{size}": "at random",
    }
    kept = {words: estimate(kept_by(data, name)).mean for name, words in names.items()}
    told = [f"{words} {percent(share)}\N{NO-BREAK SPACE}%" for words, share in kept.items() if share is not None]
    kept_by_few = f"With {size} of {data.layers} layers trained, share of the score of all: {', '.join(told)}"
    return kept_by_few if told else "Score by the number of trained layers"


def _draw_selections(panel: Axes, runs: pd.DataFrame, kinds: list[str]) -> None:
    for number, kind in enumerate(kinds):
        scores = runs[runs.kind == kind].groupby("size")["score"].agg(["mean", "std"])
        apart = 0.07 * (number - (len(kinds) - 1) / 2)
        _draw_line(panel, scores.index + apart, 100 * scores, kind, KINDS[kind])
    for selection, (name, look) in LEVEL_LOOKS.items():
        level = runs[runs.selection == selection]["score"]
        if len(level):
            panel.axhline(100 * level.mean(), label=name, **look)
    panel.axhline(100 * runs.majority.mean(), label=MAJORITY, **MAJORITY_LOOK)
    sizes = sorted(map(int, runs["size"].dropna().unique()))
    panel.set_xticks(sizes)
    panel.set_xlim(sizes[0] - 0.5, sizes[-1] + 0.5)


def _draw_line(panel: Axes, places: pd.Index, values: pd.DataFrame, label: str, number: int) -> None:
    over = values["std"] if values["std"].notna().any() else None
    panel.errorbar(places, values["mean"], over, label=label, capsize=2, elinewidth=1.0, **line_style(number))


def robustness_figure(data: Surgical) -> Figure | None:
    """Agreement with the first ranking, and movement, against the steps of fine-tuning."""
    frame = data.checkpoints
    if frame.empty:
        return None
    tasks, labels, about = [*dict.fromkeys(frame.task)], {"moved": "movement (% of the norm)"}, ""
    if not unranked(data):
        labels = {"spearman": "agreement with step 0", **labels}
        about = "Agreement: Spearman correlation of the FIM scores with those before training; dashed: the line that the claim is held against."
    drawn = framed(
        1.2 * HEIGHT, _steady_title(data),
        f"{counts(task=len(tasks), seed=frame.seed.nunique())}, all layers trained, {counted(data.layers, 'layer')}",
        f"{about}{_whiskers(frame)}".strip(), tasks,
    )  # fmt: skip
    panels = dict(zip(labels, drawn.subplots(1, len(labels), squeeze=False)[0], strict=True))
    for name, panel in panels.items():
        for number, task in enumerate(tasks):
            values = frame[frame.task == task].groupby("step")[name].agg(["mean", "std"])
            _draw_line(panel, values.index, 100 * values if name == "moved" else values, task, number)
        panel.set(xlabel="step", ylabel=labels[name])
    if left := panels.get("spearman"):
        left.axhline(data.limits.steady, linewidth=1.0, **DASHED)
        # no correlation is below -1, though a mean less a standard deviation may be
        left.set_ylim(max(min(left.get_ylim()[0], -0.05), -1.05), 1.05)
    explain(drawn, [*panels.values()][:1])
    return drawn


def _steady_title(data: Surgical) -> str:
    for finding in steady(data):
        lowest, moved = finding.fields["lowest"], percent(finding.fields["moved"])
        if finding.void:
            return (
                f"The layers move by {moved}\N{NO-BREAK SPACE}% of their norm; {data.layers} layers are too few to rank"
            )
        return (
            f"Rank correlation of the layers' scores with those before training: at least {lowest:.2f}, "
            f"while they move by {moved}\N{NO-BREAK SPACE}% of their norm"
        )
    return "How far the layers move in training"


FIGURES: dict[str, Callable[[Surgical], Figure | None]] = {
    "layers": layer_figure, "selections": selection_figure, "robustness": robustness_figure,
}  # fmt: skip
