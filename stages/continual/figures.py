"""The figure on continual learning: accuracy step by step."""

from collections.abc import Callable
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.continual.report import Sequences
from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.format import counted, extent, percent, whiskers, words
from stages.lib.report.line_styles import LEVELS, explain, framed, grid, line_style, small_multiples
from stages.lib.report.style import wrapped

PANEL_HEIGHT = 2.5
# one look for each method, whichever others are drawn
LOOKS = {"grafting": 0, "replay": 3, "ewc": 4, "naive": 5}
ALONE = "a model for each task"
# between the points of two methods, where steps are 1 apart
APART = 0.06


def steps_figure(data: Sequences, order: str) -> Figure:
    """Accuracy on each task after every step since its own, by method."""
    tasks, rows, alone = data.orders[order], data.steps(order), data.alone(FINETUNED, order)
    forgotten = data.measure[data.measure.order == order].groupby("method").forgetting.mean()
    found = ", ".join(f"{words(method)}\N{NO-BREAK SPACE}{percent(forgotten[method])}" for method in data.methods)
    drawn = framed(
        PANEL_HEIGHT * grid(len(tasks))[0],
        f"Forgotten by the end of the sequence, in points on all tasks but the last: {found}",
        f"Order {order}, {counted(len(data.seeds), 'seed')}, n = {extent(rows.n)} test rows a task",
        f"A panel for each task, from its own step on. Points: means over seeds{whiskers(data.seeds)}; set apart sideways. "
        "Black: fine-tuned alone, not in a sequence.",
        [*map(words, data.methods), ALONE],
    )
    for panel, task, first, last in small_multiples(drawn, tasks, sharex=True, sharey=True):
        _draw_steps(panel, rows[rows.task == task], data.methods)
        panel.axhline(100 * alone[alone.task == task].accuracy.mean(), label=ALONE, **LEVELS[FINETUNED])
        panel.set(title=wrapped(f"{tasks.index(task) + 1}. {task}", 26), ylabel="accuracy (%)" if first else "")
        _step_axis(panel, tasks, last)
    explain(drawn, drawn.axes)
    return drawn


def _draw_steps(panel: Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    for number, method in enumerate(methods):
        steps = rows[rows.method == method].groupby("step").accuracy.agg(["mean", "std"])
        error = None if steps["std"].isna().any() else 100 * steps["std"]
        style = {"label": words(method), "capsize": 2.5, "elinewidth": 0.9, **line_style(LOOKS[method])}
        places = steps.index + APART * (number - (len(methods) - 1) / 2)
        panel.errorbar(places, 100 * steps["mean"], error, **style)


def _step_axis(panel: Axes, tasks: list[str], bottom: bool) -> None:
    panel.set_xlim(0.7, len(tasks) + 0.3)
    many = len(tasks) > 4
    every = 2 if len(tasks) > 9 else 1
    names = [str(number) if many else wrapped(task, 9) for number, task in enumerate(tasks, 1)]
    panel.set_xticks(range(1, len(tasks) + 1, every), names[::every])
    panel.tick_params(labelbottom=True, labelsize=9)
    if bottom:
        panel.set_xlabel("step" if many else "after learning")


def makers(data: Sequences) -> dict[str, Callable[[Sequences], Figure]]:
    """steps_<order> for every order."""
    return {f"steps_{order}": partial(steps_figure, order=order) for order in data.orders}
