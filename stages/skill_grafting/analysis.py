"""Many masks at once: how far they overlap beside chance, what kinds of matrices they select, and how many rows they hit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import log1p, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .grafting.composition import KINDS, kind_of
from .grafting.mask import GraftMask
from .support.errors import ParamsError, optional
from .support.formatting import small_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


def overlaps(masks: Mapping[str, GraftMask]) -> DataFrame:
    """What each two of several masks have in common, beside what chance gives masks of their sizes: a row for each pair.

    both: how many parameters both select; by_chance: how many independent random masks of the same sizes would share, on average;
    by_chance_in_tensors: the same for masks with as many in each tensor, so that what is above it isn't only that both prefer the same
    tensors; times: both / by_chance; share_of_first, share_of_second: both / the mask's own; overlap: intersection over union.
    Raises ParamsError unless these are masks by name, two at least, MaskError for masks of models that don't fit each other.
    """
    _require(masks, 2)
    rows = [
        {"first": first, "second": second, **_pair(masks[first], masks[second])}
        for first, second in combinations(masks, 2)
    ]
    return optional("pandas").DataFrame(rows)


def _pair(first: GraftMask, second: GraftMask) -> dict[str, float]:
    shapes, both = first.region.joined(second.region).shapes, (first & second).selected
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    chance = first.selected * second.selected / sum(sizes.values())
    inside = sum(count * second.counts.get(name, 0) / sizes[name] for name, count in first.counts.items())
    return {
        "both": both,
        "by_chance": chance,
        "by_chance_in_tensors": inside,
        "times": both / chance if chance else float("nan"),
        "share_of_first": both / (first.selected or 1),
        "share_of_second": both / (second.selected or 1),
        "overlap": first.overlap(second),
    }


def by_kind(masks: Mapping[str, GraftMask]) -> DataFrame:
    """What several masks select of each kind of matrix: a row for each mask and kind, told by the usual names of parameters.

    selected, parameters: numbers; share: selected / parameters; times: share / that of the whole mask; rows: of the matrices (first
    axis), rows_hit: those with a selected parameter, rows_by_chance: how many would be hit on average if what is selected of each matrix
    lay anywhere in it; 0 where there are no matrices.  Raises ParamsError unless these are masks by name.
    """
    _require(masks, 1)
    rows = []
    for title, mask in masks.items():
        found: dict[str, dict[str, Any]] = {}
        for name, shape in mask.region.shapes.items():
            sums = found.setdefault(
                kind_of(name), dict.fromkeys(("selected", "parameters", "rows", "rows_hit", "rows_by_chance"), 0)
            )
            for what, count in _counted(mask, name, shape).items():
                sums[what] += count
        for kind in sorted(found, key=KINDS.index):
            share = found[kind]["selected"] / (found[kind]["parameters"] or 1)
            times = share / mask.sparsity if mask.selected else float("nan")
            rows.append({"mask": title, "kind": kind, "share": share, "times": times, **found[kind]})
    return optional("pandas").DataFrame(rows)


def _counted(mask: GraftMask, name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """What is selected of one tensor, in how many rows, and in how many it would be by chance (sizes as if drawn one by one)."""
    selected, parameters = mask.counts.get(name, 0), prod(shape)
    counted = {"selected": selected, "parameters": parameters}
    if len(shape) < 2 or not parameters:
        return counted
    hit = int((mask.by_row(name) > 0).sum())
    missed = np.exp(prod(shape[1:]) * log1p(-selected / parameters)) if selected < parameters else 0.0
    return counted | {"rows": shape[0], "rows_hit": hit, "rows_by_chance": shape[0] * (1 - float(missed))}


def plot_masks(masks: Mapping[str, GraftMask]) -> Figure:
    """One figure of several masks: what each two share as multiples of chance, and the share of each kind of matrix that is selected."""
    kinds, names = by_kind(masks), [*masks]
    figure = optional("matplotlib.figure").Figure(figsize=(11, 0.3 * len(names) + 3.2), layout="constrained")
    panels = figure.subplots(1, 2 if len(names) > 1 else 1, squeeze=False)[0]
    if len(names) > 1:
        _draw_overlaps(panels[0], overlaps(masks), names)
    table = 100 * kinds.pivot(index="kind", columns="mask", values="share").loc[kinds.kind.unique(), names]
    table.plot.barh(ax=panels[-1], width=0.8, legend=len(names) > 1)
    most = kinds.loc[kinds.share.idxmax()]
    panels[-1].invert_yaxis()
    panels[-1].set(xlabel="selected, % of the kind's values", ylabel="")
    found = f"Largest share: {most.kind}, {small_percent(most.share)} of its values in {most['mask']}"
    panels[-1].set_title(found, fontsize="small", parse_math=False)
    return figure


def _draw_overlaps(axes: Axes, pairs: DataFrame, names: list[str]) -> None:
    grid = np.full((len(names), len(names)), np.nan)
    for row in pairs.itertuples():
        places = names.index(row.first), names.index(row.second)
        grid[places] = grid[places[::-1]] = row.times
    axes.imshow(grid, cmap="viridis", vmin=0)
    for (down, across), times in np.ndenumerate(grid):
        if np.isfinite(times):
            light = times < 0.6 * np.nanmax(grid)
            axes.text(
                across,
                down,
                f"{times:.3g}",
                ha="center",
                va="center",
                color="white" if light else "black",
                fontsize="small",
            )
    axes.set(xticks=range(len(names)), yticks=range(len(names)), xlabel="what two share / what chance gives")
    axes.set_xticklabels(names, rotation=30, ha="right")
    axes.set_yticklabels(names)
    span = " to ".join(dict.fromkeys(f"{times:.3g}" for times in (pairs.times.min(), pairs.times.max())))
    axes.set_title(f"Two masks share {span} times what chance gives", fontsize="small", parse_math=False)


def _require(masks: object, least: int) -> None:
    """Raise ParamsError unless these are so many masks by name."""
    if not isinstance(masks, Mapping) or not all(isinstance(mask, GraftMask) for mask in masks.values()):
        raise ParamsError('masks: should be {"name": mask, ...}; the mask of a patch is patch.mask')
    if len(masks) < least:
        raise ParamsError(f"masks: there are {len(masks)}, and {least} at least are compared")
