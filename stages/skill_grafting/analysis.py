"""Many masks at once: how far they overlap beside chance, what kinds of matrices they select, and how many rows they hit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from math import log1p, prod
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from .grafting.composition import KEY, KINDS, QUERY, VALUE, kind_of
from .grafting.mask import GraftMask
from .support.errors import MaskError, ParamsError, optional
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
    either = first.selected + second.selected - both
    inside = sum(count * second.counts.get(name, 0) / sizes[name] for name, count in first.counts.items())
    return {
        "both": both,
        "by_chance": chance,
        "by_chance_in_tensors": inside,
        "times": both / chance if chance else float("nan"),
        "share_of_first": both / (first.selected or 1),
        "share_of_second": both / (second.selected or 1),
        "overlap": both / (either or 1),
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
    table.plot.barh(ax=panels[-1], width=0.8, legend=False)
    if len(names) > 1:
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    most = kinds.loc[kinds.share.idxmax()]
    panels[-1].invert_yaxis()
    panels[-1].set(xlabel="selected, % of the kind's values", ylabel="")
    found = f"Largest share: {most.kind}, {small_percent(most.share)} of its values in {most['mask']}"
    panels[-1].set_title(found, fontsize="small", parse_math=False)
    return figure


def plot_mask(mask: GraftMask, heads: int = 0, most: int = 12) -> Figure:
    """One figure of where a mask lies: the tensors with the largest selected shares, and within them the rows, or with `heads` the heads.

    heads: the number of attention heads, for models whose queries, keys and values have weights of their own with a row for each output,
    as BERT's.  most: how many tensors and rows are shown.  The title of the rows says how many chance would hit.  Raises MaskError for a
    mask that selects nothing, or whose matrices don't divide into so many heads.
    """
    if not mask.selected:
        raise MaskError("mask: selects nothing, so there is nothing to show")
    figure = optional("matplotlib.figure").Figure(figsize=(13, 0.26 * most + 1.6), layout="constrained")
    tensors, inside = figure.subplots(1, 2)
    shares = {name: count / prod(mask.region.shapes[name]) for name, count in mask.counts.items()}
    first = sorted(shares, key=lambda name: -shares[name])[:most]
    tensors.barh(first, [100 * shares[name] for name in first])
    tensors.axvline(100 * mask.sparsity, color="grey", linestyle="--", label="the whole mask")
    tensors.legend(fontsize="x-small")
    tensors.invert_yaxis()
    tensors.set(xlabel="selected, % of its values")
    title = f"Largest share: {first[0]}, {small_percent(shares[first[0]])} (all: {small_percent(mask.sparsity)})"
    _titled(tensors, title)
    (partial(_draw_heads, heads=heads) if heads else partial(_draw_rows, most=most))(inside, mask)
    return figure


def _draw_rows(axes: Axes, mask: GraftMask, most: int) -> None:
    """The rows of matrices that have most of a mask, and how many it hits at all."""
    counts = {
        (name, row): count
        for name in mask.counts
        if len(mask.region.shapes[name]) > 1
        for row, count in enumerate(mask.by_row(name).tolist())
        if count
    }
    first = sorted(counts, key=lambda place: -counts[place])[:most]
    axes.barh([f"{name} [{row}]" for name, row in first], [counts[place] for place in first], color="tab:green")
    axes.invert_yaxis()
    axes.set(xlabel="selected in the row")
    sums = [_counted(mask, name, shape) for name, shape in mask.region.shapes.items() if len(shape) > 1]
    rows, chance = (sum(one.get(name, 0) for one in sums) for name in ("rows", "rows_by_chance"))
    said = f"The mask hits {len(counts):,} of {rows:,} rows of matrices, and {chance:,.0f} if it lay anywhere in each"
    _titled(axes, said)


def _draw_heads(axes: Axes, mask: GraftMask, heads: int) -> None:
    """The share that is selected of each head's rows, a line for each matrix of queries, keys and values."""
    own = [
        name
        for name in mask.region.shapes
        if kind_of(name) in (QUERY, KEY, VALUE) and len(mask.region.shapes[name]) > 1
    ]
    if not own:
        raise MaskError("heads: the region has no matrices of queries, keys or values")
    sizes = np.array([[prod(mask.region.shapes[name]) / heads] for name in own])
    shares = 100 * np.array([mask.by_row(name, parts=heads).tolist() for name in own]) / sizes
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, aspect="auto")
    axes.figure.colorbar(drawn, ax=axes, label="selected, % of the head's rows")
    axes.set(xticks=range(heads), yticks=range(len(own)), xlabel="head, from 0")
    axes.set_yticklabels(own)
    line, head = np.unravel_index(shares.argmax(), shares.shape)
    said = f"Largest share: head {head} of {own[line]}, {small_percent(shares.max() / 100)} of its rows"
    _titled(axes, said)


def _titled(axes: Axes, text: str) -> None:
    """A title that may be longer than narrow axes are wide: it ends at their right and runs over the names beside them."""
    axes.set_title("\n".join(wrap(text, 60)), fontsize="small", loc="right", parse_math=False)
    axes.tick_params(axis="y", labelsize="x-small")


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
