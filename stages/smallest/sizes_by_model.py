"""sizes_by_model: what `make smallest` found with several models, in one figure and table.

python -m stages.smallest.sizes_by_model BERT-tiny=tiny/sizes.csv MiniLM=minilm/sizes.csv --figure sizes_by_model.png

Each file is the plots/smallest/sizes.csv of a run.  Only tasks and localizers that all of them have are compared.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stages.commands.named_runs import named_runs, read_csv, seeds_of
from stages.lib.command import guarded
from stages.lib.errors import DataError
from stages.lib.report.document import Report
from stages.lib.report.format import counts, small_percent, words
from stages.lib.report.line_styles import explain, framed, line_styles
from stages.lib.report.publish import show
from stages.lib.report.stats import Estimate
from stages.lib.report.style import save_all
from stages.lib.report.table import Column, Line, Table, shown
from stages.smallest.frames import CELL, is_bound, log_size
from stages.smallest.report import interval, parameters

COLUMNS = ["localizer", *CELL, "selected", "graftable", "enough"]
PANEL_HEIGHT = 3.2
# between the points of a model's localizers, where models are 1 apart: two regions of nearly the same size need room, too
SPREAD = 0.07
# how many times as high as its point an arrow goes
ARROW = 6.0


def main() -> None:
    """Parse the command line, print the table, draw the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.smallest.sizes_by_model", description="The smallest grafts of several models."
    )
    parser.add_argument("runs", nargs="+", metavar="MODEL=FILE", help="a model's name and the sizes.csv of its run")
    parser.add_argument("--figure", type=Path, required=True, help="PNG to write")
    asked = parser.parse_args()
    if asked.figure.suffix != ".png":
        parser.error(f"--figure {asked.figure}: a name that ends in .png is wanted")
    found = read_runs(asked.runs)
    save_all({asked.figure.stem: sizes_by_model}, found, asked.figure.parent)
    show(Report("How small a skill is, by model", _sample(found), shown([table(found)]), [], []))


def read_runs(runs: Sequence[str]) -> pd.DataFrame:
    """The searches of all models with an answer (`model` and COLUMNS), models from the smallest region on.

    Raises DataError naming what is wrong with the words or a file, or that the runs share no task or no localizer.
    """
    files = named_runs(runs, "MODEL=FILE is wanted, as in MiniLM=plots/smallest/sizes.csv")
    frames = [_read(file).assign(model=name) for name, file in files.items()]
    found = pd.concat(frames)
    for column in ("localizer", "task"):
        everywhere = set.intersection(*({*frame[column]} for frame in frames))
        if not everywhere:
            raise DataError(f"{' '.join(runs)}: no {column} is in all of these")
        found = found[found[column].isin(everywhere)]
    return found.sort_values("graftable", kind="stable")


def _read(file: Path) -> pd.DataFrame:
    found = read_csv(file, COLUMNS, "the sizes.csv of a run of `make smallest`")
    found = found[found.enough.notna()]
    if found.empty:
        raise DataError(f"{file}: no search has an answer, fine-tuning gained too little in every cell")
    return found.assign(enough=found.enough.astype(bool))[COLUMNS]


def table(found: pd.DataFrame) -> Table:
    """A line for each localizer and model: geometric mean over tasks, the tasks' own sizes, the share of the region."""
    lines = [
        Line((words(localizer), model), part)
        for localizer in dict.fromkeys(found.localizer)
        for model, part in _models(found, localizer)
    ]
    columns = [
        Column("region", lambda part: f"{part.graftable.iloc[0]:,}", str),
        Column("n", len, str),
        Column("enough", lambda part: f"{part.enough.sum()} of {len(part)}", str),
        Column("parameters", _parameters, str),
        Column("interval", lambda part: interval(size(part)), str),
        Column("tasks", lambda part: f"{_of_tasks(part).min():,.0f} to {_of_tasks(part).max():,.0f}", str),
        Column("of the region", lambda part: small_percent(10 ** size(part).mean / part.graftable.iloc[0]), str),
    ]
    notes = [
        "parameters: geometric mean over tasks, of a task over its seeds; at least: in some cell not even the largest size is enough",
        "interval: 95 %, over tasks; none for one seed",
    ]
    return Table("Fewest parameters that bring most of the gain", ["localizer", "model"], columns, lines, notes)


def size(part: pd.DataFrame) -> Estimate:
    """log10 of the sizes of one model and localizer."""
    return log_size(part.set_index(CELL))


def _models(found: pd.DataFrame, localizer: str) -> list[tuple[str, pd.DataFrame]]:
    """The searches of a localizer by model."""
    return [*found[found.localizer == localizer].groupby("model", sort=False)]


def _parameters(part: pd.DataFrame) -> str:
    return parameters(size(part), is_bound(part))


def _of_tasks(part: pd.DataFrame) -> pd.Series:
    """Geometric means over seeds, by task."""
    return 10 ** np.log10(part.selected.astype(float)).groupby(part.task).mean()


def sizes_by_model(found: pd.DataFrame) -> Figure:
    """Sizes by model, from the smallest region on: a line through the means of each localizer, a point for each task."""
    localizers = [*dict.fromkeys(found.localizer)]
    regions = found.groupby("model", sort=False).graftable.first()
    drawn = framed(
        PANEL_HEIGHT, _title(found), _sample(found),
        "Lines: geometric means over tasks, with 95 % intervals where there are two seeds. Small points: tasks. "
        "Arrows: in some cell not even the largest size tried is enough. Grey: the whole region.",
        [words(name) for name in localizers],
    )  # fmt: skip
    panel, order = drawn.subplots(), [*regions.index]
    for number, (name, look) in enumerate(line_styles(localizers).items()):
        aside = SPREAD * (number - (len(localizers) - 1) / 2)
        models = _models(found, name)
        sizes = [size(part) for _, part in models]
        means = [10**value.mean for value in sizes]
        places = [order.index(model) + aside for model, _ in models]
        panel.plot(places, means, label=words(name), **look)
        for place, mean, value, (_, part) in zip(places, means, sizes, models, strict=True):
            if value.error is not None:
                ends = [[mean - 10**value.low], [10**value.high - mean]]
                panel.errorbar([place], [mean], yerr=ends, color=look["color"], capsize=3, elinewidth=0.9)
            tasks = _of_tasks(part)
            panel.plot([place] * len(tasks), tasks, ".", color=look["color"], markersize=5, alpha=0.6)
            if is_bound(part):
                arrow = {"arrowstyle": "->", "color": look["color"]}
                panel.annotate("", (place, ARROW * mean), (place, mean), arrowprops=arrow)
    panel.plot(range(len(order)), regions, "_-", color="#999999", markersize=14, linewidth=1.0)
    panel.set(yscale="log", ylabel="parameters of the graft", xlabel="model, and parameters of its region")
    panel.set_xlim(-0.5, len(order) - 0.5)
    panel.set_xticks(range(len(order)), [f"{model}\n{region:,}" for model, region in regions.items()])
    panel.minorticks_off()
    explain(drawn, [panel])
    return drawn


def _title(found: pd.DataFrame) -> str:
    names = dict.fromkeys(found.localizer)
    parts = [
        f"by {words(name)}: " + ", ".join(f"{_parameters(part)} ({model})" for model, part in _models(found, name))
        for name in names
    ]
    return f"Fewest parameters that bring most of the gain, {'; '.join(parts)}"


def _sample(found: pd.DataFrame) -> str:
    sizes = counts(model=found.model.nunique(), task=found.task.nunique())
    return f"{sizes} ({', '.join(dict.fromkeys(found.task))}), {seeds_of(found, 'model')}"


if __name__ == "__main__":
    guarded("sizes_by_model", main)
