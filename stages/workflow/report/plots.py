"""Four kinds of figure over tidy frames: dots, lines, paths and heat-maps.

The mean over panels or rows comes first and large.  Colours are those of Okabe and Ito (2008); each has a marker of its own,
so that lines can be told without colour.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from skill_grafting.support.formatting import small_percent
from stages.workflow.report.formats import counts
from stages.workflow.report.spec import (
    Figure,
    Frames,
    Spec,
    by_line,
    fill,
    groups_of,
    heading,
    named,
    rows_of,
    texts_of,
)
from stages.workflow.report.stats import estimate
from stages.workflow.report.tables import facts_of

COLOURS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9", "#444444", "#B8A800")
MARKERS = ("s", "o", "D", "^", "v", "P", "X", "*")
# what several figures compare looks the same in each, by whichever of these names
GRAFT, MOVED, CHANCE, LINE = ("#009E73", "o"), ("#E69F00", "^"), ("#444444", "X"), ("#CC79A7", "P")
KNOWN = {
    "pretrained": ("#8A8A8A", "D"), "finetuned": ("#D55E00", "s"), "checkpoint": ("#D55E00", "s"),
    "label_words": ("#56B4E9", "v"), "finetuned_tempered": ("#0072B2", "v"), "wise_graft": ("#009E73", "."),
    **dict.fromkeys(["grafted", "graft", "grafting", "learned", "learned graft", "learned mask", "graft by size"], GRAFT),
    **dict.fromkeys(["movement_grafted", "movement", "lota"], MOVED),
    **dict.fromkeys(["random", "chance", "by chance"], CHANCE),
    **dict.fromkeys(["wise_ft", "WiSE-FT", "one_bit"], LINE),
}  # fmt: skip
SETTINGS = {
    "font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#E3E3E3", "svg.hashsalt": "", "legend.frameon": False,
}  # fmt: skip
WIDTH, ROW, PANEL, TITLE, DPI = 9.0, 0.27, 2.3, 0.28, 150  # inches
LINE, LONGEST = 0.2, 82  # of a title: inches of a further line, characters of one
DOT, MEAN_DOT = 7, 11  # points (1/72 inch) across a dot, and across one of the mean
TOP = 0.5  # rows that the mean stands further up, so that its larger dots have room
INSIDE = 0.75  # share of a drawing that is within its axes, about
APART = 5  # points between the whiskers of two lines, where there is room
LEGIBLE = 0.3  # inches across a cell that has room for its number

Part = tuple[dict[str, Any], pd.DataFrame]  # the value of a panel's column, and its rows


@dataclass(frozen=True)
class _Plot:
    """A figure of a spec with its rows."""

    spec: Spec
    frames: Frames
    figure: Figure
    rows: pd.DataFrame

    def count(self, columns: Sequence[str]) -> int:
        """How many units, or seeds, there are."""
        return len(self.rows[[*columns]].drop_duplicates()) if {*columns} <= {*self.rows} else 0

    def marks(self) -> str:
        """What the small points and whiskers are that are really drawn, and of how many tasks and seeds all is."""
        figure, seeds, units = self.figure, self.count(["seed"]), self.count(self.figure.units)
        over, notes = {("task",): "tasks", ("seed",): "seeds"}.get((*figure.units,), "pairs of tasks"), []
        if figure.kind == "dots" and figure.points and self.count([figure.points]) > 1:
            notes.append(f"small points: {figure.points}s")
        if units > 1 and not figure.growing and (figure.kind == "lines" or (figure.kind == "dots" and not figure.mean)):
            notes.append(f"whiskers: standard deviation over {over}")
        if figure.kind == "lines" and figure.panel and seeds > 1:
            notes.append(
                "in small panels over seeds"
                if units > 1 and not figure.growing
                else "whiskers: standard deviation over seeds"
            )
        sample = counts(**{name: number for name in ("task", "pair", "seed") if (number := self.count([name]))})
        told = ", ".join(notes)
        of = f"n = {sample}".replace(" ", "\N{NO-BREAK SPACE}", 2) if sample else ""
        return "; ".join(filter(None, [told[:1].upper() + told[1:], of]))

    @property
    def panels(self) -> list[Part]:
        """The rows of each panel; all of them where there is one."""
        return [*groups_of(self.spec, self.rows, [self.figure.panel] if self.figure.panel else [])]

    @cached_property
    def looks(self) -> dict[Any, dict[str, Any]]:
        """Label, colour and marker of each hue, none twice while there are others."""
        names = self.spec.ordered(self.rows[self.figure.hue].dropna()) if self.figure.hue else [""]
        taken = {look for name, looks in KNOWN.items() if name in names for look in looks}
        # with more hues than colours a colour comes again beside the next marker
        own = [
            pair for turn in range(len(MARKERS)) for pair in zip(COLOURS, MARKERS[turn:] + MARKERS[:turn], strict=True)
        ]
        free = iter([pair for pair in own if pair[0] not in taken])
        looks = {name: KNOWN.get(name) or next(free) for name in names}
        return {name: {"label": self.text(name), "color": look[0], "marker": look[1]} for name, look in looks.items()}

    def by_hue(self, rows: pd.DataFrame) -> Iterator[tuple[float, dict[str, Any], pd.DataFrame]]:
        """Each hue: how far it stands from the middle of all, its look, and those of the rows that it has."""
        for place, (hue, look) in enumerate(self.looks.items()):
            own = rows[rows[self.figure.hue] == hue] if self.figure.hue else rows
            yield place - (len(self.looks) - 1) / 2, look, own

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Between which values all lie: 0 and 1 of shares, and without an end where one is beyond it."""
        values = self.rows[self.figure.value].astype(float)
        return 0 if values.min() >= 0 else -np.inf, 1 if values.max() <= 1 else np.inf

    def whiskers(self, means: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        """How far each whisker goes down and up, at most to the end of all values; of shape (2, n)."""
        lowest, highest = self.bounds
        return np.array([np.minimum(spreads, means - lowest), np.minimum(spreads, highest - means)])

    def text(self, value: Any) -> str:
        """A group's name for people."""
        return small_percent(value) if isinstance(value, float) else self.spec.label(value)

    def title(self, part: dict[str, Any]) -> str:
        """What a panel is about, of the mean over panels its label."""
        return self.text(next(iter(part.values()))) if part else self.figure.mean

    def levels(self, panel: Axes, part: dict[str, Any], upright: bool = False) -> None:
        """Lines across a panel, such as the fine-tuned model's score, each with a dash of its own."""
        figure = self.figure
        for level, other in zip(figure.levels, ("-", "--", "-.", ":"), strict=False):
            rows = by_line(rows_of(self.frames, level, figure.data), part)(part)
            mean = 100 * rows.groupby(figure.units)[level.value].mean().mean()
            dash = {"fine-tuned": "-", "pretrained": ":"}.get(level.label, other)
            draw = panel.axvline if upright else panel.axhline
            draw(mean, color="#555555", linestyle=dash, linewidth=1.2, zorder=1, label=level.label)

    def scale(self, panel: Axes) -> None:
        """An axis of logarithms where that is asked for, and no fractions of what is counted."""
        if self.figure.log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter(LogFormatter())  # which writes numbers where few powers of ten are in sight
        elif self.figure.x and pd.api.types.is_integer_dtype(self.rows[self.figure.x]):
            panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def draw_all(spec: Spec, frames: Frames) -> Iterator[tuple[str, Drawing]]:
    """Name and drawing of every figure that there is data for."""
    facts = facts_of(spec, frames)
    for name, figure in spec.figures.items():
        key = f"figures.{name}"
        with named(spec, key, frames), matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(SETTINGS)
            rows = rows_of(frames, figure)
            if figure.without and rows.empty:
                yield name, _note(figure.without)
            for part, own in groups_of(spec, rows, [figure.split] if figure.split else []):
                if len(own):
                    plot = _Plot(spec, frames, _of_one(figure, own), own)
                    drawn = KINDS[figure.kind](plot)
                    shown = {**texts_of(own), **facts, **{column: plot.text(value) for column, value in part.items()}}
                    caption = fill(spec, figure.caption, key, **shown)
                    _frame(drawn, heading(spec, figure, key, **shown), f"{caption} {plot.marks()}")
                    yield "_".join([name, *map(str, part.values())]), drawn


def _note(text: str) -> Drawing:
    """A figure of words alone, as DVC asks for each file that its entry names."""
    drawn = Drawing(figsize=(WIDTH, 0.6))
    drawn.text(0.01, 0.5, text, va="center", color="#444444")
    return drawn


def _of_one(figure: Figure, rows: pd.DataFrame) -> Figure:
    """The figure without the mean over its panels or rows where there is one, which would be drawn twice."""
    axis = figure.y if figure.kind == "dots" else figure.panel
    return figure.model_copy(update={"mean": ""}) if figure.mean and rows[axis].nunique() < 2 else figure


def _frame(drawn: Drawing, title: str, caption: str) -> None:
    room, lines = drawn.get_suptitle(), _wrapped(title, LONGEST)  # the room are empty lines, for a legend
    for legend in drawn.legends:
        legend.set_bbox_to_anchor((0.0, 1 - (TITLE + LINE * (len(lines) - 1)) / drawn.get_figheight()))
    drawn.suptitle("\n".join(lines) + room, x=0.01, ha="left", fontsize=12, fontweight="bold")
    drawn.supxlabel("\n".join(_wrapped(caption, 125)), x=0.01, ha="left", fontsize=9, color="#444444")


def _wrapped(text: str, width: int) -> list[str]:
    whole = re.sub(r"(?<=\d) (?=%|kB)", "\N{NO-BREAK SPACE}", text)  # a number stays beside its unit
    return textwrap.wrap(whole, width, break_on_hyphens=False)


def _grid(columns: int, panels: int, height: float, room: float, **options: Any) -> tuple[Drawing, list[Axes]]:
    """A drawing with so many panels, no empty ones, of this height each, and room for title and caption."""
    lines = math.ceil(panels / columns)
    drawn = Drawing(figsize=(WIDTH, height * lines + room), layout="constrained")
    axes = [*drawn.subplots(lines, columns, squeeze=False, **options).flat]
    for panel in axes[panels:]:
        panel.set_axis_off()
    return drawn, axes


# --- Dots ----------------------------------------------------------------------------------------------------------


def _dots(plot: _Plot) -> Drawing:
    """A row for each value of y; with `points`, its values small beside the mean.

    With `mean`, the mean over all rows comes first and larger, and the dots of a row are joined, without whiskers.
    """
    figure, parts = plot.figure, plot.panels
    names = [*([figure.mean] if figure.mean else []), *plot.spec.ordered(plot.rows[figure.y])]
    places = [row - TOP if figure.mean and not row else row for row in range(len(names))]
    height = ROW * (len(names) + 2 * TOP * bool(figure.mean)) + 0.7
    across = 3 if len(parts) == 3 else min(2, len(parts))
    drawn, axes = _grid(across, len(parts), height, 1.2, sharey=True, sharex=True)
    for panel, (part, rows) in zip(axes, parts, strict=False):
        for place, look, own in plot.by_hue(rows):
            aside = 0 if figure.mean else 0.5 * place / len(plot.looks)
            _dot_rows(plot, panel, own, dict(zip(names, places, strict=True)), look, aside)
        if figure.mean:
            _join(panel, places, INSIDE * WIDTH * 72 / across)
        plot.levels(panel, part, upright=True)
        panel.set_yticks(places, [name if name == figure.mean else plot.text(name) for name in names])
        panel.set_ylim(len(names) - 0.5, 2 * places[0] - 0.5)
        for label in panel.get_yticklabels()[: bool(figure.mean)]:  # a panel that shares the axis of another has none
            label.set_fontweight("bold")
        panel.set(xlabel=figure.label, title=plot.title(part) if part else "")
        panel.grid(visible=False, axis="y")
        plot.scale(panel)
    return _with_legend(drawn, axes[: len(parts)])


def _dot_rows(
    plot: _Plot, panel: Axes, rows: pd.DataFrame, names: dict[Any, float], look: dict[str, Any], aside: float
) -> None:
    """The dots of one hue, at their row or beside it."""
    figure = plot.figure
    bars = {"linestyle": "", "capsize": 2, "elinewidth": 1}
    for name, place in names.items():
        whole = place < 0
        own = rows if whole else rows[rows[figure.y] == name]
        if own.empty:
            continue
        value = estimate(own.groupby([*figure.units, "seed"])[figure.value].mean().astype(float), figure.units)
        if figure.points and own[figure.points].nunique() > 1:
            points = 100 * own.groupby(figure.points)[figure.value].mean()
            panel.plot(points, [place + aside] * len(points), ".", color=look["color"], alpha=0.45, zorder=2)
        size = MEAN_DOT if whole else DOT
        shown = look if place <= 0 else look | {"label": None}
        edge = {"markeredgecolor": "white" if figure.mean else look["color"]}
        if not figure.mean and value.sd is not None:
            edge["xerr"] = 100 * plot.whiskers(np.array([value.mean]), np.array([value.sd]))
        panel.errorbar(100 * value.mean, place + aside, markersize=size, **edge, **bars, **shown)


def _join(panel: Axes, rows: Sequence[float], width: float) -> None:
    """A line from the first to the last dot of each row; dots that would cover each other stand one above the other; `width` in points."""
    dots = sorted((bars.lines[0] for bars in panel.containers), key=_place)
    scale = width / max(_place(dots[-1]) - _place(dots[0]), 1e-9)
    for row in rows:
        own = [dot for dot in dots if dot.get_ydata()[0] == row]
        panel.plot([_place(own[0]), _place(own[-1])], [row, row], color="#BBBBBB", linewidth=1.5, zorder=1)
        size, heaps = own[0].get_markersize(), [own[:1]]
        for before, dot in pairwise(own):
            if (_place(dot) - _place(before)) * scale < size:
                heaps[-1].append(dot)
            else:
                heaps.append([dot])
        for heap in heaps:
            step = min(size / (72 * ROW), (1 + 2 * TOP * (row < 0)) / len(heap))  # rows
            for above, dot in enumerate(heap):
                dot.set_ydata([row + step * (above - (len(heap) - 1) / 2)])
    panel.axhline(0.5, color="#DDDDDD", linewidth=0.8, zorder=0)


def _place(dot: Line2D) -> float:
    return dot.get_xdata()[0]


# --- Lines and paths -----------------------------------------------------------------------------------------------


def _panels(plot: _Plot) -> tuple[Drawing, list[tuple[Axes, dict[str, Any], pd.DataFrame]]]:
    """Axes with their rows: the mean over panels large at the upper left, the panels around it as small multiples."""
    figure, parts = plot.figure, plot.panels
    small = len(parts) if figure.panel else 0
    columns = 1 if small <= 3 and figure.mean else 2 if small <= 4 or figure.mean else 3
    columns = min(columns, max(small, 1))
    tall, wide = 0, 0  # lines and columns of the mean
    if figure.mean:
        tall, wide = math.ceil(small / columns) if small <= 6 else 2, 2
    lines = max(tall + math.ceil(max(small - tall * columns, 0) / (columns + wide)), 1)
    drawn = Drawing(figsize=(WIDTH, max(PANEL * lines, 3.2) + 1.2), layout="constrained")
    if not figure.panel:
        return drawn, [(drawn.subplots(), {}, plot.rows)]
    cells = drawn.add_gridspec(lines, columns + wide)
    free = [place for place in product(range(lines), range(columns + wide)) if place[0] >= tall or place[1] >= wide]
    found = [(drawn.add_subplot(cells[:tall, :wide]), {}, plot.rows)] if figure.mean else []
    # points of two measures lie where they lie, but for those about a diagonal
    sharing = figure.kind == "lines" or figure.diagonal
    for place, (part, rows) in zip(free, parts, strict=False):
        shared = found[0][0] if found and sharing else None
        axes = drawn.add_subplot(cells[place], sharex=shared, sharey=shared)
        found.append((axes, part, rows))
    return drawn, found


def _lines(plot: _Plot) -> Drawing:
    """Means by x, a line for each hue; whiskers are standard deviations over units, in a panel of one task over seeds.

    The mean over panels is drawn where all of them have values: else it would be of other tasks at each x.
    """
    figure, (drawn, panels) = plot.figure, _panels(plot)
    apart, margin = _apart(plot, panels[0][0])
    for panel, part, rows in panels:
        size = 3.5 if part and figure.mean else 5
        panel.margins(x=margin)
        for place, look, own in plot.by_hue(rows):
            every = own[figure.panel].nunique() if figure.mean and not part and not figure.growing else 0
            groups = [
                (x, *_spread(figure, group, bool(part)))
                for x, group in own.groupby(figure.x)
                if not every or group[figure.panel].nunique() == every
            ]
            if groups:
                xs, means, spreads = np.array(groups, float).T
                bars = {"capsize": 2, "elinewidth": 0.8, "markersize": size, **look}
                if not np.isnan(spreads).all():  # so that whiskers can be told from those of others
                    aside = ScaledTranslation(apart * place / 72, 0, drawn.dpi_scale_trans)
                    bars["transform"] = panel.transData + aside
                    bars["yerr"] = 100 * plot.whiskers(means, spreads)
                    ends = 100 * means + np.nan_to_num(bars["yerr"]) * [[-1], [1]]
                    panel.update_datalim(np.column_stack([np.tile(xs, 2), ends.ravel()]))
                    panel.autoscale_view()
                panel.errorbar(xs, 100 * means, **bars)
        plot.levels(panel, part)
        plot.scale(panel)
        _titled(plot, panel, part)
    return _with_legend(drawn, [panel for panel, *_ in panels])


def _apart(plot: _Plot, panel: Axes) -> tuple[float, float]:
    """Points between the whiskers of two lines, those of one x nearer to each other than to the next x's; and the margin that the outermost need."""
    places = np.unique(plot.rows[plot.figure.x].to_numpy(float))
    places = np.log(places) if plot.figure.log else places
    spec = panel.get_subplotspec()
    width = INSIDE * WIDTH * 72 * len(spec.colspan) / spec.get_gridspec().ncols
    gap = np.diff(places).min() / np.ptp(places) if len(places) > 1 else 1
    apart = min(APART, 0.8 * width * gap / len(plot.looks))
    return apart, 0.05 + apart * (len(plot.looks) - 1) / 2 / width


def _spread(figure: Figure, rows: pd.DataFrame, alone: bool) -> tuple[float, float]:
    """Mean and standard deviation over units, or in a panel of one of them over seeds."""
    by = figure.units if not alone else ["seed"] if "seed" in rows else []
    values = rows.groupby(by)[figure.value].mean() if by else rows[figure.value]
    return values.mean(), np.nan if figure.growing and not alone else values.std(ddof=1)


def _paths(plot: _Plot) -> Drawing:
    """A point for each hue at the means of two measures x and value; one with several `points` (such as weights) is a path."""
    figure, (drawn, panels) = plot.figure, _panels(plot)
    for panel, part, rows in panels:
        shape = {"linewidth": 0.8, "markersize": 4 if part else 7}
        for _, look, own in plot.by_hue(rows):
            along = [figure.points] if figure.points else []
            means = own.groupby([*along, *figure.units], dropna=False)[[figure.x, figure.value]].mean()
            means = means.groupby(level=0, dropna=False).mean() if along else means.mean().to_frame().T
            if len(own):
                panel.plot(100 * means[figure.x], 100 * means[figure.value], **look, **shape)
        if figure.diagonal:
            panel.axline((100, 100), slope=1, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
        _titled(plot, panel, part)
    return _with_legend(drawn, [panel for panel, *_ in panels])


def _titled(plot: _Plot, panel: Axes, part: dict[str, Any]) -> None:
    figure = plot.figure
    panel.set_title(plot.title(part), fontsize=9 if part else 11, loc="left")
    if not part or not figure.mean:
        panel.set(xlabel=figure.x_label or plot.spec.label(figure.x), ylabel=figure.label)
    panel.tick_params(which="both", labelsize=8 if part else 9)


def _with_legend(drawn: Drawing, axes: Sequence[Axes]) -> Drawing:
    """One legend below the title, each label once."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            if label:
                found.setdefault(label, handle)
    if found:
        columns = max(min(110 // (max(map(len, found)) + 7), 6, len(found)), 1)
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, 1 - TITLE / drawn.get_figheight())}
        legend = drawn.legend(found.values(), found.keys(), ncols=columns, fontsize=9, borderaxespad=0.3, **place)
        legend.set_in_layout(False)  # the lines below the title leave room for it
        titled = any(panel.get_title(loc="left") for panel in axes)
        drawn.suptitle("\n" * (math.ceil(len(found) / columns) + titled))
    return drawn


# --- Heat-maps -----------------------------------------------------------------------------------------------------


def _heatmaps(plot: _Plot) -> Drawing:
    """A panel for each group: the mean of a value by row and column, as colours, and as numbers where cells have room for them.

    With `box`, rows and columns are numbers, and a box goes around those up to it.
    """
    figure, tables = plot.figure, []
    for part, rows in plot.panels:
        means = rows.pivot_table(index=figure.y, columns=figure.x, values=figure.value, sort=figure.box > 0)
        names, others = plot.spec.ordered(means.index), plot.spec.ordered(means.columns)
        columns = names if {*names} == {*others} else others  # of the same things in the same order
        tables.append((part, 100 * (means if figure.box else means.reindex(index=names, columns=columns))))
    wide = max(len(table.columns) for _, table in tables)
    even = len({len(table) for _, table in tables}) == 1
    alike = all(
        table.axes[0].equals(tables[0][1].index) and table.axes[1].equals(tables[0][1].columns) for _, table in tables
    )
    # a low panel beside a high one would float, and of few wide ones the numbers are shown
    across = min(3, len(tables)) if even and (wide <= 6 or len(tables) > 2) else 1
    across = (
        4 if across == 3 and len(tables) % 4 == 0 < len(tables) % 3 and wide <= 12 else across
    )  # no hole at the end
    # inches; beside the panels stand the rows' names and the colours
    cell = min(0.4 if even else 0.46, ((WIDTH - 2.2) / across - 0.2) / wide)
    names = alike and cell < LEGIBLE  # once, below the last panels and left of the first ones
    tall = [max(len(table) for _, table in tables[first : first + across]) for first in range(0, len(tables), across)]
    heights = [max(cell * rows + (0.5 if names else 1.2 if figure.x_label else 1.1), 1.2) for rows in tall]
    drawn, axes = _grid(across, len(tables), sum(heights) / len(heights), 1.5 if names else 1.2, height_ratios=heights)
    values = pd.concat([table.stack() for _, table in tables])
    norm = _norm(figure, values)
    for place, (panel, (part, table)) in enumerate(zip(axes, tables, strict=False)):
        _heatmap(plot, panel, table, norm, cell >= LEGIBLE)
        title = _wrapped(plot.title(part), 90 // across) if names else [plot.title(part)]
        panel.set_title("\n".join(title), fontsize=9 if names else 10)
        below = names and place + across < len(tables)
        panel.tick_params(labelleft=not place % across or not alike, labelbottom=not below)
    bar = drawn.colorbar(axes[0].images[0], ax=axes, label=figure.label, shrink=min(0.7, 3.5 / drawn.get_figheight()))
    middle = 100 * (figure.centre or 0)
    lowest = 0 if figure.centre is None else min(values.min(), middle - 1)
    bar.ax.set_ylim(lowest, max(values.max(), middle + 1))  # the middle, and no colour that nothing has
    return drawn


def _norm(figure: Figure, values: pd.Series) -> Normalize:
    """Colours from 0, or equally far to both sides of the centre."""
    if figure.centre is None:
        return Normalize(0, values.max())
    middle = 100 * figure.centre
    away = max(values.max() - middle, middle - values.min(), 1)
    return TwoSlopeNorm(middle, middle - away, middle + away)


def _heatmap(plot: _Plot, panel: Axes, table: pd.DataFrame, norm: Normalize, numbers: bool) -> None:
    box, even = plot.figure.box, plot.figure.centre is None
    colours, origin = "Blues" if even else "PuOr_r", "lower" if box else "upper"
    panel.imshow(table, norm=norm, cmap=colours, aspect="equal", origin=origin)
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        if numbers and not np.isnan(value):
            dark = norm(value) > 0.6 if even else abs(norm(value) - 0.5) > 0.3
            colour = "white" if dark else "black"
            panel.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    for side, names in ((panel.xaxis, table.columns), (panel.yaxis, table.index)):
        labels = [f"{name:g}" if isinstance(name, float) else plot.spec.label(name) for name in names]
        side.set_ticks(range(len(names)), labels, fontsize=8)
    panel.tick_params(axis="x", rotation=0 if box else 90 if len(table.columns) > 6 else 40)
    panel.grid(visible=False)
    panel.set(xlabel=plot.figure.x_label, ylabel=plot.spec.label(plot.figure.y) if box else "")
    if box:
        middle, inside = (len(table) - 1) / 2, np.sum(np.abs(table.index.to_numpy(float)) <= box)
        corner = (middle - inside / 2, middle - inside / 2)
        panel.add_patch(Rectangle(corner, inside, inside, fill=False, edgecolor="#D55E00", linewidth=2))


KINDS = {"dots": _dots, "lines": _lines, "paths": _paths, "heatmap": _heatmaps}
