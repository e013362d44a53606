"""Figures of the smallest grafts: their sizes task by task, and what the search saw on its way."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from stages.lib.report.format import counted, counts, extent, percent, words
from stages.lib.report.line_styles import explain, framed, line_styles, small_multiples
from stages.smallest.frames import CELL, Smallest, is_bound
from stages.smallest.report import parameters

ROW, MARGINS, PANEL_HEIGHT = 0.42, 0.9, 2.5
# of a row, over which the points of its localizers are spread
SPREAD = 0.7
# how many times as far as its point an arrow goes
ARROW = 1.6
MEAN = "mean of all"
PLAIN = FuncFormatter(lambda value, _: f"{value:,.0f}")


def sizes_figure(found: Smallest) -> Figure | None:
    """A row for each task and one for their geometric mean, a point for each localizer; an arrow where no size was enough."""
    answered = found.sizes[found.sizes.enough.notna()]
    if answered.empty:
        return None
    tasks = [task for task in found.settings.tasks if task in {*answered.task}]
    rows = [*tasks, *([MEAN] if len(tasks) > 1 else [])]
    n = extent([dev["n"] for dev in answered.dev])
    drawn = framed(
        ROW * len(rows) + MARGINS, _smallest_of_all(found),
        f"{counts(task=len(tasks), seed=found.sizes.seed.nunique())}, {percent(found.settings.gain, 0)} % of the gain on dev rows, n = {n}",
        f"Points: geometric means over seeds. Whiskers: from a task's smallest to its largest size; of the {MEAN} the 95 % interval "
        f"over tasks. Arrows: in some seed not even {percent(found.settings.largest, 0)} % of the region was enough.{_left_out(found)}",
        [words(name) for name in found.localizers],
    )  # fmt: skip
    panel = drawn.subplots()
    for number, (name, look) in enumerate(line_styles(found.localizers).items()):
        aside = SPREAD * ((number + 0.5) / len(found.localizers) - 0.5)
        _draw_sizes(panel, found, name, rows, aside, look | {"linestyle": "none"})
    panel.set_xscale("log")
    low, high = panel.set_xlim(right=ARROW * panel.get_xlim()[1])
    panel.xaxis.set_major_formatter(PLAIN)
    if high < 10 * low:  # one power of ten at most, between others
        panel.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        panel.xaxis.set_minor_formatter(PLAIN)
    panel.set_yticks(range(len(rows)), rows)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(visible=True, axis="x")
    panel.set_xlabel("parameters of the graft")
    explain(drawn, [panel])
    return drawn


def _draw_sizes(panel: Axes, found: Smallest, name: str, rows: list[str], aside: float, look: dict) -> None:
    sizes = found.of(name)
    for place, task in enumerate(rows):
        if task == MEAN:
            value, bound = found.size(name), found.at_least(name)
            middle = 10**value.mean if value.units else np.nan
            ends = (middle, middle) if not value.units or value.error is None else (10**value.low, 10**value.high)
        else:
            part = sizes[sizes.index.get_level_values("task") == task]
            numbers, bound = part.selected.astype(float), is_bound(part)
            middle, ends = np.exp(np.log(numbers).mean()), (numbers.min(), numbers.max())
        # the mean of equal sizes may differ from them in the last digit
        whiskers = np.maximum([[middle - ends[0]], [ends[1] - middle]], 0)
        label, height = words(name) if place == 0 else "_", place + aside
        panel.errorbar([middle], [height], xerr=whiskers, label=label, capsize=2, elinewidth=0.9, **look)
        if bound and middle == middle:
            arrow = {"arrowstyle": "->", "color": look["color"]}
            panel.annotate("", (middle * ARROW, height), (middle, height), arrowprops=arrow)


def _left_out(found: Smallest) -> str:
    missing = found.sizes.groupby(CELL).enough.count().eq(0)
    cells = f"{missing.sum()} of {counted(len(missing), 'cell')} (a task in a seed)"
    told = f" Without {cells}, in which fine-tuning gained less than {100 * found.least_gain:g} points."
    return told * bool(missing.any())


def _smallest_of_all(found: Smallest) -> str:
    """The localizer with the fewest parameters, and what the others take."""
    sizes = {name: found.size(name) for name in found.localizers}
    told = sorted((name for name, value in sizes.items() if value.units), key=lambda name: sizes[name].mean)
    parts = [f"{words(name)} {parameters(sizes[name], found.at_least(name))}" for name in told]
    return f"Parameters that bring {percent(found.settings.gain, 0)} % of the gain: {', '.join(parts)}"


def looks_figure(found: Smallest) -> Figure | None:
    """A panel for each task: the gain on dev by size, of all seeds."""
    if found.looks.empty:
        return None
    looks = found.looks.astype({"gain": float})
    tasks = [task for task in found.settings.tasks if task in {*looks.task}]
    # only a smaller part of the model can show that it brings more than fine-tuning did
    best = looks.groupby(["localizer", *CELL]).gain.max()
    drawn = framed(
        PANEL_HEIGHT * -(-len(tasks) // 2),
        f"In {int((best > 1).sum())} of {len(best)} searches some graft gains more on dev than fine-tuning did",
        f"{counts(task=len(tasks), seed=looks.seed.nunique())}, {counted(len(looks), 'graft')}; sizes that the search looked at",
        f"Gain: (graft - pretrained) / (fine-tuned - pretrained), score on dev rows. Dashed: "
        f"{percent(found.settings.gain, 0)} %, what is asked for.{_left_out(found)}",
        [words(name) for name in found.localizers],
    )  # fmt: skip
    for panel, task, first, last in small_multiples(drawn, tasks, columns=2, sharex=True):
        for name, look in line_styles(found.localizers).items():
            part = looks[(looks.task == task) & (looks.localizer == name)].sort_values("selected")
            panel.plot(part.selected, 100 * part.gain, label=words(name), **(look | {"linestyle": "none"}))
        panel.axhline(100 * found.settings.gain, color="black", linestyle=(0, (4, 2)), linewidth=1.0)
        panel.set_xscale("log")
        panel.tick_params(labelbottom=True)
        panel.set_title(task, loc="left")
        panel.set(xlabel="parameters of the graft" if last else "", ylabel="gain on dev (%)" if first else "")
        panel.xaxis.set_major_formatter(PLAIN)
    explain(drawn, drawn.axes)
    return drawn


FIGURES: dict[str, Callable[[Smallest], Figure | None]] = {"sizes": sizes_figure, "looks": looks_figure}
