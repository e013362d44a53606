"""Figures of task arithmetic: heat-maps of pruning, localization and disentanglement; bars of addition and of masks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stages.lib.metrics.composition import KINDS
from stages.lib.report.format import counts, extent, percent, small_percent
from stages.lib.report.line_styles import LINE_STYLES, explain, framed, small_multiples
from stages.lib.report.load import Collected
from stages.lib.report.stats import Estimate, Mean, estimate, paired
from stages.lib.report.style import figure, wrapped
from stages.talos.frames import CELL
from stages.talos.report import PAIR, ordered, pruned, search_errors, share_of, title

# lightness falls evenly along it, so that it can be read in grey
SEQUENTIAL = "Blues"
CELL_INCHES, LABELS_INCHES, PLANES_INCHES = 0.62, 1.0, 7.6
PRUNED = {"least": "least sensitive", "random": "random", "most": "most sensitive"}
DARK = 0.55
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "--", "**")
# a number in a cell of a heat-map takes so much of the width that panels have
WIDTH_INCHES, NUMBER_INCHES = 7.2, 0.45
MOST_COLUMNS = 3
MOST_WRITTEN = 7
COMPARED = ("talos", "lota", "graft")
# told in titles
MAIN = ("full_matched", "talos", "graft")
WHISKERS = "whiskers: standard deviation over tasks"


def pruning_figure(talos: Collected) -> Figure | None:
    """Accuracy after pruning / before, by which task the parameters were scored on."""
    frame = talos.frames["pruned"]
    if not len(frame):
        return None
    panels = {name: _square(frame[frame.kind == kind], "scored_on", talos.tasks) for kind, name in PRUNED.items()}
    kept = _list({name: pruned(talos, kind).value.mean for kind, name in PRUNED.items()})
    headline = f"Zero-shot accuracy left with {small_percent(frame.pruned.mean())} of the parameters set to 0: {kept}"
    constant = percent((frame.majority / frame.pretrained).groupby(frame.task).mean().mean())
    return _ratios(
        talos, panels, "scored on", headline,
        f"Test accuracy / that of the whole pretrained model (n = {extent(frame.n)} test rows a task); always the most frequent "
        f"label: {constant}\N{NO-BREAK SPACE}%",
    )  # fmt: skip


def localization_figure(talos: Collected) -> Figure | None:
    """Accuracy of the model of one task on all tasks / that of the pretrained model."""
    frame = talos.frames["localization"]
    if not len(frame):
        return None
    squares = {name: _square(frame[frame.method == name], "trained_on", talos.tasks) for name in ordered(frame.method)}
    others = ~np.eye(len(talos.tasks), dtype=bool)
    told = ", ".join(
        f"{title(name)} {percent(np.nanmean(square.diagonal()))} and {percent(np.nanmean(square[others]))}\N{NO-BREAK SPACE}%"
        for name, square in squares.items()
        if name in MAIN
    )
    return _ratios(
        talos, {title(name): values for name, values in squares.items()}, "trained on",
        f"Own task (diagonal) and other tasks, of the zero-shot accuracy: {told or 'see the panels'}",
        f"Test accuracy of each task's model / zero-shot accuracy of the pretrained model (n = {extent(frame.n)} test rows a task)",
    )  # fmt: skip


def disentangle_figure(talos: Collected) -> Figure | None:
    """Mean error over the plane of both coefficients, with the box in which alpha is searched."""
    frame = talos.frames["disentangle"]
    if not len(frame):
        return None
    pairs, methods = [*dict.fromkeys(frame.pair)], ordered(frame.method)
    by_method = {name: rows.set_index([*PAIR, "seed"])["mean"] for name, rows in search_errors(talos).groupby("method")}
    errors = _list({title(name): estimate(by_method[name], PAIR).mean for name in methods})
    base = "full_matched"
    others = [name for name in methods if name != base] if base in methods else []
    differences = [f"{title(name)} {paired(by_method[name], by_method[base], PAIR).in_points()}" for name in others]
    beside = f" Difference to {title(base)}, in points, with 95 % intervals: {', '.join(differences)}."
    drawn = figure(
        len(pairs) * (PLANES_INCHES / len(methods) + 0.5), f"Predictions that the other task's vector changes, in the box: {errors}",
        "Test predictions that change when the other task's vector is added; box: where alpha is searched; "
        f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{extent(frame.n)} test rows a task",
        f"Mean of both tasks' errors; pairs of tasks: {', '.join(pairs)}; mean over {counts(seed=len(talos.seeds))}."
        + beside * bool(others), legend_rows=0,
    )  # fmt: skip
    axes = drawn.subplots(len(pairs), len(methods), squeeze=False)
    highest = 100 * frame.groupby(["pair", "method", "alpha1", "alpha2"])["mean"].mean().max()
    for (row, column), panel in np.ndenumerate(axes):
        pair, method = pairs[row], methods[column]
        image = _plane(panel, frame[(frame.pair == pair) & (frame.method == method)], highest, *pair.split("+"))
        panel.set_title(title(method) if row == 0 else "")
        panel.set_ylabel(panel.get_ylabel() if column == 0 else "")
    drawn.colorbar(image, ax=[*drawn.axes], label="predictions (%)", shrink=0.6)
    return drawn


def _plane(panel: Axes, part: pd.DataFrame, highest: float, first: str, second: str) -> QuadMesh:
    grid = part.pivot_table(index="alpha2", columns="alpha1", values="mean")
    alphas, errors = grid.columns.to_numpy(float), 100 * grid.to_numpy()
    step = alphas[1] - alphas[0]
    image = panel.pcolormesh(alphas, alphas, errors, vmin=0, vmax=highest or 100, cmap=SEQUENTIAL, shading="nearest")
    # along the edges of cells, where it crosses no number
    edge = alphas[alphas <= 1].max() + step / 2
    panel.add_patch(Rectangle((-edge, -edge), 2 * edge, 2 * edge, fill=False, edgecolor="#D55E00", linewidth=2))
    if len(alphas) <= MOST_WRITTEN:
        _write_values(panel, errors, errors > DARK * highest, alphas, size=7)
    ticks = [alphas[0], 0, alphas[-1]]
    panel.set(xticks=ticks, yticks=ticks, xlabel=f"alpha of {first}", ylabel=f"alpha of {second}", aspect="equal")
    panel.set_xlim(alphas[0] - step / 2, alphas[-1] + step / 2)
    panel.grid(visible=False)
    return image


def _square(part: pd.DataFrame, row: str, tasks: list[str]) -> np.ndarray:
    table = part.assign(ratio=pd.to_numeric(part.ratio)).pivot_table(index=row, columns="task", values="ratio")
    return table.reindex(index=tasks, columns=tasks).to_numpy(float)


def _ratios(talos: Collected, panels: dict[str, np.ndarray], rows_are: str, headline: str, details: str) -> Figure:
    tasks, names = talos.tasks, [wrapped(task, 14) for task in talos.tasks]
    # as few columns as leave room for a number in each of the cells beside each other
    most = min(MOST_COLUMNS, len(panels), max(1, int(WIDTH_INCHES / (NUMBER_INCHES * len(tasks)))))
    rows = math.ceil(len(panels) / most)
    columns = math.ceil(len(panels) / rows)
    height = min(CELL_INCHES * len(tasks), (WIDTH_INCHES - LABELS_INCHES) / columns) + LABELS_INCHES
    caption = f"Rows: {rows_are}; columns: tested on; 100 %: no change; mean over {counts(seed=len(talos.seeds))}."
    drawn = figure(rows * height, headline, details, caption, legend_rows=0)
    panels = {name: 100 * values for name, values in panels.items()}
    known = np.concatenate([values[~np.isnan(values)] for values in panels.values()])
    away = float(np.abs(known - 100).max(initial=0.0)) or 10
    norm = TwoSlopeNorm(100, 100 - away, 100 + away)
    for panel, (name, values), first, _ in small_multiples(drawn, [*panels.items()], columns):
        image = panel.imshow(values, norm=norm, cmap="PuOr_r")
        _write_values(panel, values, np.abs(norm(values) - 0.5) > 0.3, range(len(tasks)))
        panel.set_title(name)
        panel.set_xticks(range(len(tasks)), names, rotation=35, ha="right", fontsize=9)
        panel.set_yticks(range(len(tasks)), names if first else [], fontsize=9)
        panel.grid(visible=False)
    label = wrapped("accuracy (% of the pretrained model's)", 40 if rows * len(tasks) > 3 else 20)
    drawn.colorbar(image, ax=[*drawn.axes], label=label, shrink=0.6)
    return drawn


def _list(shares: Mapping[str, float]) -> str:
    """From the highest on, in lines that don't break before the unit: "full fine-tuning 25.9 %, TaLoS 14.9 %"."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(value)}\N{NO-BREAK SPACE}%" for name, value in ranked)


def _over_tasks(rows: pd.DataFrame, column: str) -> Estimate:
    return estimate(rows.set_index(CELL)[column].astype(float))


def addition_figure(talos: Collected) -> Figure | None:
    """Accuracy of single models and of one model for all, and below it their ratio."""
    frame = talos.frames["addition"]
    if not len(frame):
        return None
    parts = {name: frame[frame.method == name] for name in ordered(frame.method)}
    added = {name: _over_tasks(part, "accuracy").mean for name, part in parts.items()}
    told = {
        title(name): value for name, value in added.items() if name in (*MAIN, "random") or value == max(added.values())
    }
    drawn = framed(
        5.4, f"All tasks in one model, by accuracy: {_list(told)}",
        f"Test accuracy of the added vectors, {counts(task=len(talos.tasks), seed=len(talos.seeds))}, n = {extent(frame.n)} test rows a task",
        f"Bars: mean over tasks, {WHISKERS}; own single: the method's own model of one task.",
        ["single-task models", "one model for all, added", "pretrained, zero-shot", "added / own single"],
    )  # fmt: skip
    upper, lower = drawn.subplots(2, 1, height_ratios=[3, 2], sharex=True)
    groups = {"single-task models": "single", "one model for all, added": "accuracy"}
    bars = {label: [_over_tasks(part, column) for part in parts.values()] for label, column in groups.items()}
    _draw_bars(upper, bars, [*map(title, parts)])
    upper.axhline(
        100 * frame.pretrained.mean(), color="#555555", linestyle=":", linewidth=1.4, label="pretrained, zero-shot"
    )
    ratios = [_over_tasks(part, "by_own") for part in parts.values()]
    lower.errorbar(
        range(len(ratios)), [100 * ratio.mean for ratio in ratios], [100 * (ratio.sd or np.nan) for ratio in ratios],
        fmt="D", color="#0072B2", capsize=2, label="added / own single",
    )  # fmt: skip
    lower.axhline(100, color="black", linewidth=0.8)
    lower.tick_params(axis="x", labelsize=9)
    upper.set_ylabel("accuracy (%)")
    lower.set_ylabel("added / own\nsingle (%)")
    explain(drawn, [upper, lower])
    return drawn


def mask_figure(talos: Collected) -> Figure | None:
    """Share of the parameters of each kind and layer that masks select."""
    frame = talos.frames["tensors"]
    parts = {title(name): frame[frame.method == name] for name in ordered(frame.method) if name in COMPARED}
    if not parts:
        return None

    def shares(column: str, values: Sequence[Any]) -> dict[str, list[Estimate]]:
        return {name: [estimate(share_of(part[part[column] == one])) for one in values] for name, part in parts.items()}

    kinds, layers = [kind for kind in KINDS if kind in {*frame.kind}], sorted({*frame.layer.dropna()})
    by_kind, told = shares("kind", kinds), {}
    for name, means in by_kind.items():
        kind, most = max(zip(kinds, means, strict=True), key=lambda pair: pair[1].mean)
        told[f"{name} of {kind}"] = most.mean
    drawn = framed(
        5.6, f"Selected most: {_list(told)}",
        "Share of the parameters of each kind of tensor, and of each layer, that the mask selects, in %",
        f"Bars: mean over {counts(task=len(talos.tasks), seed=len(talos.seeds))}, {WHISKERS}; a mask without preferences would "
        "have equal bars.", [*parts],
    )  # fmt: skip
    upper, lower = drawn.subplots(2, 1)
    _draw_bars(upper, by_kind, [wrapped(kind, 13) for kind in kinds])
    _draw_bars(lower, shares("layer", layers), [str(int(layer)) for layer in layers])
    lower.set_xlabel("layer")
    for panel in (upper, lower):
        panel.set_ylabel("selected (%)")
    explain(drawn, [upper])
    return drawn


def overlap_figure(talos: Collected) -> Figure | None:
    """IoU of the masks of two tasks, for every method that has masks of its own."""
    frame = talos.frames["task_iou"]
    parts = {title(name): frame[frame.method == name] for name in ordered(frame.method) if name != "attention"}
    if not parts:
        return None
    bars = {
        label: [estimate(part.set_index([*PAIR, "seed"])[column].astype(float), PAIR) for part in parts.values()]
        for label, column in {"two tasks": "iou", "by chance": "chance"}.items()
    }
    ranked = sorted(zip(parts, *bars.values(), strict=True), key=lambda one: -one[1].mean)
    told = [f"{name} {percent(value.mean)} (by chance {percent(chance.mean)})" for name, value, chance in ranked]
    drawn = framed(
        3.2, f"IoU of two tasks' masks in %: {', '.join(told)}",
        f"Intersection over union of the masks of two tasks; {counts(task=len(talos.tasks), seed=len(talos.seeds))}",
        "Bars: mean over pairs of tasks, whiskers: standard deviation over pairs.", [*bars],
    )  # fmt: skip
    panel = drawn.subplots()
    _draw_bars(panel, bars, [*parts])
    panel.set_ylabel("IoU (%)")
    explain(drawn, [panel])
    return drawn


def _draw_bars(panel: Axes, groups: Mapping[str, Sequence[Mean]], labels: Sequence[str]) -> None:
    """For each label a bar for each group, in %: `groups[name][place of the label]`, with its deviation where there is one."""
    width = 0.8 / len(groups)
    for number, (name, means) in enumerate(groups.items()):
        places = np.arange(len(labels)) + (number - (len(groups) - 1) / 2) * width
        panel.bar(
            places, [100 * (mean.mean or 0) for mean in means], width, label=name, color=LINE_STYLES[number][0],
            yerr=[np.nan if mean.sd is None else 100 * mean.sd for mean in means], hatch=HATCHES[number], edgecolor="black",
            linewidth=0.6, error_kw={"elinewidth": 1, "capsize": 2},
        )  # fmt: skip
    names = [wrapped(label) if "\n" not in label else label for label in labels]
    panel.set_xticks(np.arange(len(labels)), names, fontsize=9)
    panel.set_ylim(bottom=0)


def _write_values(panel: Axes, values: np.ndarray, dark: np.ndarray, places: Sequence[float], size: float = 9) -> None:
    """Write each value of a heat-map into its cell, at the `places` of rows and columns, in white where it is `dark`; NaN is left out."""
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            color = "white" if dark[row, column] else "black"
            look = {"ha": "center", "va": "center", "fontsize": size, "color": color}
            panel.text(places[column], places[row], f"{value:.0f}", **look)


FIGURES: dict[str, Callable[[Collected], Figure | None]] = {
    "pruning": pruning_figure,
    "localization": localization_figure,
    "disentanglement": disentangle_figure,
    "added": addition_figure,
    "masks": mask_figure,
    "task_overlap": overlap_figure,
}
