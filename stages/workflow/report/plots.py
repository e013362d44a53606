"""Four kinds of figure over tidy frames: dots, lines, paths and heat-maps.

The mean over panels or rows comes first and large.  Colours are those of Okabe and Ito (2008); each has a marker of its own,
so that lines can be told without colour.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from stages.lib.words import small_percent

from .spec import Figure, Frames, Spec, by_line, fill, groups_of, named, rows_of
from .stats import Estimate, estimate
from .tables import facts_of

COLOURS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9", "#444444", "#B8A800")
MARKERS = ("s", "o", "D", "^", "v", "P", "X", "*")
# the models that all pipelines compare look the same in each figure
KNOWN = {
    "pretrained": ("#8A8A8A", "D"), "finetuned": ("#D55E00", "s"), "grafted": ("#009E73", "o"), "movement_grafted": ("#E69F00", "^"),
    "finetuned_tempered": ("#0072B2", "v"), "wise_ft": ("#CC79A7", "P"), "wise_graft": ("#009E73", "."),
}  # fmt: skip
SETTINGS = {
    "font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#E3E3E3", "svg.hashsalt": "", "legend.frameon": False,
}  # fmt: skip
WIDTH, ROW, PANEL, TITLE, DPI = 9.0, 0.27, 2.3, 0.28, 150  # inches


def draw_all(spec: Spec, frames: Frames) -> Iterator[tuple[str, Drawing]]:
    """Name and drawing of every figure that there is data for."""
    facts = facts_of(spec, frames)
    for name, figure in spec.figures.items():
        with named(spec, f"figures.{name}", frames), matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(SETTINGS)
            rows = rows_of(frames, figure)
            for part, own in groups_of(spec, rows, [figure.split] if figure.split else []):
                if len(own):
                    suffix = "".join(f"_{value}" for value in part.values())
                    drawn = KINDS[figure.kind](spec, frames, figure, own)
                    _frame(
                        drawn,
                        *(
                            fill(spec, text, f"figures.{name}", **facts, **part)
                            for text in (figure.title, figure.caption)
                        ),
                    )
                    yield name + suffix, drawn


def _frame(drawn: Drawing, title: str, caption: str) -> None:
    room = drawn.get_suptitle()  # empty lines, for a legend
    drawn.suptitle(title + room, x=0.01, ha="left", fontsize=12, fontweight="bold")
    drawn.supxlabel("\n".join(textwrap.wrap(caption, 125)), x=0.01, ha="left", fontsize=9, color="#444444")


def _look(spec: Spec, names: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """Colour and marker of each group, none twice while there are others."""
    taken = {look for name, looks in KNOWN.items() if name in names for look in looks}
    own = [pair for pair in zip(COLOURS, MARKERS, strict=True) if pair[0] not in taken]
    free = iter(own * (1 + len(names) // len(own)))
    looks = {name: KNOWN.get(name) or next(free) for name in names}
    return {name: {"color": colour, "marker": marker} for name, (colour, marker) in looks.items()}


def _hues(spec: Spec, figure: Figure, rows: pd.DataFrame) -> list[Any]:
    return spec.ordered(rows[figure.hue].dropna()) if figure.hue else [""]


def _text(spec: Spec, value: Any) -> str:
    return small_percent(value) if isinstance(value, float) else spec.label(value)


def _mean(figure: Figure, rows: pd.DataFrame) -> Estimate:
    """The mean over units; its deviation is theirs."""
    return estimate(rows.groupby([*figure.units, "seed"])[figure.value].mean().astype(float), figure.units)


# --- Dots ----------------------------------------------------------------------------------------------------------


def _dots(spec: Spec, frames: Frames, figure: Figure, rows: pd.DataFrame) -> Drawing:
    """A row for each value of y; with `points`, its values small beside the mean.

    With `mean`, the mean over all rows comes first and larger, and the dots of a row are joined, without whiskers.
    """
    panels = [*groups_of(spec, rows, [figure.panel] if figure.panel else [])]
    names = [*([figure.mean] if figure.mean else []), *spec.ordered(rows[figure.y])]
    columns = min(2, len(panels))
    height = (ROW * len(names) + 0.7) * math.ceil(len(panels) / columns) + 1.2
    drawn = Drawing(figsize=(WIDTH, height), layout="constrained")
    axes = [*drawn.subplots(math.ceil(len(panels) / columns), columns, squeeze=False, sharey=True, sharex=True).flat]
    hues = _hues(spec, figure, rows)
    for panel, (part, own) in zip(axes, panels, strict=False):
        for place, hue in enumerate(hues):
            mine = own[own[figure.hue] == hue] if figure.hue else own
            look, aside = _look(spec, hues)[hue], 0.5 * (place - (len(hues) - 1) / 2) / len(hues) * (not figure.mean)
            _dot_rows(spec, figure, panel, mine, names, look | {"label": _text(spec, hue)}, aside)
        if figure.mean:
            _join(panel, len(names))
        _levels(spec, frames, figure, panel, part, upright=True)
        panel.set_yticks(range(len(names)), [_text(spec, name) if name != figure.mean else name for name in names])
        panel.set_ylim(len(names) - 0.5, -0.5)
        for label in panel.get_yticklabels()[: bool(figure.mean)]:  # a panel that shares the axis of another has none
            label.set_fontweight("bold")
        panel.set(xlabel=figure.label, title=_text(spec, part[figure.panel]) if figure.panel else "")
        panel.grid(visible=False, axis="y")
        if figure.log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
    return _finish(drawn, axes, len(panels))


def _dot_rows(
    spec: Spec,
    figure: Figure,
    panel: Axes,
    rows: pd.DataFrame,
    names: Sequence[Any],
    look: dict[str, Any],
    aside: float,
) -> None:
    for place, name in enumerate(names):
        whole = bool(figure.mean) and place == 0
        own = rows if whole else rows[rows[figure.y] == name]
        if own.empty:
            continue
        mean, spread = _middle(figure, own)
        if figure.points:
            tasks = (1 if figure.log else 100) * own.groupby(figure.points)[figure.value].mean()
            panel.plot(tasks, [place + aside] * len(tasks), ".", color=look["color"], alpha=0.45, zorder=2)
        spread = None if figure.mean else spread
        shown = {
            **look,
            "label": look["label"] if place == 0 else None,
            "markeredgecolor": "white" if figure.mean else look["color"],
        }
        panel.errorbar(
            mean,
            place + aside,
            xerr=spread,
            linestyle="",
            capsize=2,
            elinewidth=1,
            markersize=11 if whole else 7,
            **shown,
        )


def _middle(figure: Figure, rows: pd.DataFrame) -> tuple[float, Any]:
    """Mean over units and their deviation, on an axis of logarithms the geometric ones, to both ends."""
    if not figure.log:
        value = _mean(figure, rows)
        return 100 * value.mean, np.nan if value.sd is None else 100 * value.sd
    value = _mean(figure, rows.assign(**{figure.value: np.log10(rows[figure.value])}))
    mean, ratio = 10**value.mean, 10 ** (value.sd or 0.0)
    return mean, [[mean - mean / ratio], [mean * ratio - mean]]


def _join(panel: Axes, rows: int) -> None:
    """A line from the first to the last dot of each row; the mean stands apart."""
    means = [(bars.lines[0].get_xdata()[0], bars.lines[0].get_ydata()[0]) for bars in panel.containers]
    for row in range(rows):
        own = [x for x, y in means if y == row]
        panel.plot([min(own), max(own)], [row, row], color="#BBBBBB", linewidth=1.5, zorder=1)
    panel.axhline(0.5, color="#DDDDDD", linewidth=0.8, zorder=0)


def _levels(spec: Spec, frames: Frames, figure: Figure, panel: Axes, part: dict[str, Any], upright: bool) -> None:
    """Lines across a panel, such as the fine-tuned model's score, each with a dash of its own."""
    for level, other in zip(figure.levels, ("-", "--", "-.", ":"), strict=False):
        dash = {"fine-tuned": "-", "pretrained": ":"}.get(level.label, other)
        rows = rows_of(frames, level, figure.data)
        rows = by_line(rows, part)(part)
        mean = (1 if figure.log and upright else 100) * rows.groupby(figure.units)[level.value].mean().mean()
        (panel.axvline if upright else panel.axhline)(
            mean, color="#555555", linestyle=dash, linewidth=1.2, zorder=1, label=level.label
        )


# --- Lines and paths -----------------------------------------------------------------------------------------------


def _panels(
    spec: Spec, figure: Figure, rows: pd.DataFrame
) -> tuple[Drawing, list[tuple[Axes, dict[str, Any], pd.DataFrame]]]:
    """Axes with their rows: the mean over panels large at the left, the panels beside it as small multiples."""
    parts = [*groups_of(spec, rows, [figure.panel] if figure.panel else [])]
    small = len(parts) if figure.panel else 0
    columns = 1 if small <= 3 and figure.mean else 2 if small <= 4 or figure.mean else 3
    columns = min(columns, max(small, 1))
    lines = max(math.ceil(small / columns), 1)
    drawn = Drawing(figsize=(WIDTH, max(PANEL * lines, 3.2) + 1.2), layout="constrained")
    if not figure.panel:
        return drawn, [(drawn.subplots(), {}, rows)]
    large = drawn.add_gridspec(lines, columns + 2) if figure.mean else drawn.add_gridspec(lines, columns)
    first = [(drawn.add_subplot(large[:, :2]), {}, rows)] if figure.mean else []
    shift = 2 if figure.mean else 0
    found = []
    for place, (part, own) in enumerate(parts):
        # points of two measures lie where they lie, but for those about a diagonal
        alike = (first or found) if figure.kind == "lines" or figure.diagonal else []
        shared = alike[0][0] if alike else None
        axes = drawn.add_subplot(large[place // columns, shift + place % columns], sharex=shared, sharey=shared)
        found.append((axes, part, own))
    return drawn, [*first, *found]


def _lines(spec: Spec, frames: Frames, figure: Figure, rows: pd.DataFrame) -> Drawing:
    """Means by x, a line for each hue; whiskers are standard deviations over units, in a panel of one task over seeds."""
    drawn, panels = _panels(spec, figure, rows)
    hues = _hues(spec, figure, rows)
    looks = _look(spec, hues)
    for panel, part, own in panels:
        for place, hue in enumerate(hues):
            mine = own[own[figure.hue] == hue] if figure.hue else own
            groups = [(x, _spread(figure, group, bool(part))) for x, group in mine.groupby(figure.x)]
            if groups:
                xs = np.array([x for x, _ in groups], float)
                places = _set_apart(figure, xs, rows[figure.x], place - (len(hues) - 1) / 2)
                means, spreads = ([100 * value[side] for _, value in groups] for side in (0, 1))
                small = 3.5 if part and figure.mean else 5
                panel.errorbar(
                    places,
                    means,
                    spreads,
                    label=_text(spec, hue),
                    capsize=2,
                    elinewidth=0.8,
                    markersize=small,
                    **looks[hue],
                )
        _levels(spec, frames, figure, panel, part, upright=False)
        if figure.log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
        elif pd.api.types.is_integer_dtype(rows[figure.x]):
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        _titled(spec, figure, panel, part)
    return _finish(drawn, [panel for panel, *_ in panels], len(panels))


def _set_apart(figure: Figure, xs: np.ndarray, every: pd.Series, place: float) -> np.ndarray:
    """Where a line's whiskers stand, so that they can be told from those of others."""
    return xs * (every.max() / every.min()) ** (0.012 * place) if figure.log else xs + 0.01 * place * np.ptp(every)


def _spread(figure: Figure, rows: pd.DataFrame, alone: bool) -> tuple[float, float]:
    """Mean and standard deviation over units, or in a panel of one of them over seeds."""
    if alone:
        values = rows.groupby("seed")[figure.value].mean() if "seed" in rows else rows[figure.value]
        return values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan
    units = rows.groupby(figure.units)[figure.value].mean()
    return units.mean(), units.std(ddof=1) if len(units) > 1 else np.nan


def _paths(spec: Spec, frames: Frames, figure: Figure, rows: pd.DataFrame) -> Drawing:
    """A point for each hue at the means of two measures x and value; one with several `points` (such as weights) is a path.

    A scatter has the points alone.
    """
    drawn, panels = _panels(spec, figure, rows)
    hues = _hues(spec, figure, rows)
    looks = _look(spec, hues)
    for panel, part, own in panels:
        for hue in hues:
            mine = own[own[figure.hue] == hue]
            along = mine.groupby(figure.points, dropna=False) if figure.points else [("", mine)]
            means = [
                (100 * group.groupby(figure.units)[[figure.x, figure.value]].mean().mean()).to_list()
                for _, group in along
            ]
            if means:
                look = looks[hue] | {"linewidth": 0.8 if figure.kind == "paths" else 0, "markersize": 4 if part else 7}
                panel.plot(*zip(*means, strict=True), label=_text(spec, hue), **look)
        if figure.diagonal:
            panel.axline((100, 100), slope=1, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
        _titled(spec, figure, panel, part)
    return _finish(drawn, [panel for panel, *_ in panels], len(panels))


def _titled(spec: Spec, figure: Figure, panel: Axes, part: dict[str, Any]) -> None:
    title = _text(spec, next(iter(part.values()))) if part else figure.mean
    panel.set_title(title, fontsize=9 if part else 11, loc="left")
    if not part or not figure.mean:
        panel.set(xlabel=figure.x_label or spec.label(figure.x), ylabel=figure.label)
    panel.tick_params(labelsize=8 if part else 9)


def _finish(drawn: Drawing, axes: Sequence[Axes], used: int) -> Drawing:
    """One legend below the title, each label once; no empty panels."""
    for panel in axes[used:]:
        panel.set_axis_off()
    found: dict[str, Any] = {}
    for panel in axes[:used]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            if label:
                found.setdefault(label, handle)
    if found:
        columns = max(min(110 // (max(map(len, found)) + 7), 6, len(found)), 1)
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, 1 - TITLE / drawn.get_figheight())}
        legend = drawn.legend(found.values(), found.keys(), ncols=columns, fontsize=9, borderaxespad=0.3, **place)
        legend.set_in_layout(False)  # the lines below the title leave room for it
        drawn.suptitle("\n" * math.ceil(len(found) / columns))
    return drawn


# --- Heat-maps -----------------------------------------------------------------------------------------------------


def _heatmaps(spec: Spec, frames: Frames, figure: Figure, rows: pd.DataFrame) -> Drawing:
    """A panel for each group: the mean of a value by row and column, in words of numbers in each cell, with a box of the side `box`."""
    parts = [*groups_of(spec, rows, [figure.panel] if figure.panel else [])]
    tables = [
        (part, 100 * own.pivot_table(index=figure.y, columns=figure.x, values=figure.value, sort=figure.box > 0))
        for part, own in parts
    ]
    columns = min(3, len(tables))
    lines = math.ceil(len(tables) / columns)
    most = max(max(table.shape) for _, table in tables)
    drawn = Drawing(figsize=(WIDTH, lines * max(2.6, 0.28 * most + 1.2) + 1.0), layout="constrained")
    axes = [*drawn.subplots(lines, columns, squeeze=False).flat]
    norm = _norm(figure, [table for _, table in tables])
    for panel, (part, table) in zip(axes, tables, strict=False):
        shown = (
            table if figure.box else table.reindex(index=spec.ordered(table.index), columns=spec.ordered(table.columns))
        )
        _heatmap(spec, figure, panel, shown, norm)
        panel.set_title(_text(spec, part[figure.panel]) if part else "", fontsize=10)
    for panel in axes[len(tables) :]:
        panel.set_axis_off()
    drawn.colorbar(axes[0].images[0], ax=axes, label=figure.label, shrink=0.7)
    return drawn


def _norm(figure: Figure, tables: Sequence[pd.DataFrame]) -> Any:
    highest, lowest = (getattr(pd.concat([table.stack() for table in tables]), side)() for side in ("max", "min"))
    if figure.centre is None:
        return matplotlib.colors.Normalize(0, highest)
    middle = 100 * figure.centre
    away = max(highest - middle, middle - lowest, 1)
    return TwoSlopeNorm(middle, middle - away, middle + away)


def _heatmap(spec: Spec, figure: Figure, panel: Axes, table: pd.DataFrame, norm: Any) -> None:
    panel.imshow(
        table,
        norm=norm,
        cmap="Blues" if figure.centre is None else "PuOr_r",
        aspect="equal",
        origin="lower" if figure.box else "upper",
    )
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        if not np.isnan(value):
            share = float(norm(value))
            dark = share > 0.6 if figure.centre is None else abs(share - 0.5) > 0.3
            panel.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
            )
    for side, names in ((panel.xaxis, table.columns), (panel.yaxis, table.index)):
        side.set_ticks(
            range(len(names)),
            [f"{name:g}" if isinstance(name, float) else spec.label(name) for name in names],
            fontsize=8,
        )
    panel.tick_params(axis="x", rotation=0 if figure.box else 40)
    panel.grid(visible=False)
    panel.set(xlabel=figure.x_label, ylabel="")
    if figure.box:
        middle, inside = (len(table) - 1) / 2, np.sum(np.abs(table.index.to_numpy(float)) <= figure.box)
        panel.add_patch(
            Rectangle((middle - inside / 2,) * 2, inside, inside, fill=False, edgecolor="#D55E00", linewidth=2)
        )


KINDS = {"dots": _dots, "lines": _lines, "paths": _paths, "scatter": _paths, "heatmap": _heatmaps}
