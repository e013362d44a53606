"""scores_by_run: the models of several runs of the main pipeline side by side, such as those of more and more examples.

python -m stages.commands.scores_by_run 16=few/plots 64=more/plots 256=many/plots --by "examples per class" --figure shots.png

Each folder is the `plots` of a run.  Only test sets that all of them have are compared: a task's own ones, and others'.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.commands.named_runs import named_runs, read_csv, seeds_of
from stages.lib.command import guarded
from stages.lib.errors import DataError
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED, TEMPERED
from stages.lib.report.document import Report
from stages.lib.report.format import counted, counts, words
from stages.lib.report.line_styles import explain, framed
from stages.lib.report.publish import show
from stages.lib.report.stats import Estimate, estimate, paired
from stages.lib.report.style import COLORS, LINES, save_all
from stages.lib.report.table import Column, Line, Table, shown

PAIR = ["task", "test_set"]
COLUMNS = [*PAIR, "seed", "variant", "n", "score", "ece"]
OWN, OTHER = "own", "other"
TEST_SETS = {OWN: "the task's own test set", OTHER: "test sets of other tasks"}
MEASURES = {"score": "Score", "ece": "Calibration error (ECE)"}
SHORT = {PRETRAINED: "pre", FINETUNED: "FT", TEMPERED: "FT/T", MOVEMENT_GRAFTED: "move", GRAFTED: "graft"}
STYLES = LINES | {
    TEMPERED: LINES[FINETUNED] | {"linestyle": (0, (1, 1.5)), "markerfacecolor": "white"},
    MOVEMENT_GRAFTED: LINES[GRAFTED] | {"color": COLORS[MOVEMENT_GRAFTED], "linestyle": ":", "marker": "D"},
}
PANEL_HEIGHT = 2.9
# of the distance of two runs, between the lines of two models
ASIDE = 0.05


def main() -> None:
    """Parse the command line, print the tables, draw the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.scores_by_run", description="Scores and calibration of several runs."
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help="a run's name, and its folder `plots`")
    parser.add_argument("--by", default="run", help="what the names are, such as: examples per class")
    parser.add_argument("--figure", type=Path, required=True, help="PNG to write")
    asked = parser.parse_args()
    if asked.figure.suffix != ".png":
        parser.error(f"--figure {asked.figure}: a name that ends in .png is wanted")
    found = read_runs(asked.runs)
    save_all({asked.figure.stem: lambda rows: scores_by_run(rows, asked.by)}, found, asked.figure.parent)
    show(Report(f"Fine-tuned and grafted models by {asked.by}", sample(found), shown(tables(found, asked.by)), [], []))


def read_runs(runs: Sequence[str]) -> pd.DataFrame:
    """Scores of all runs on the test sets that all have (`run`, `kind` of test set, COLUMNS), in the order of the command line.

    Raises DataError naming what is wrong with the words or a file, or that the runs share no task.
    """
    folders = named_runs(runs, "NAME=FOLDER is wanted, as in 64=plots")
    frames = [_read(folder).assign(run=name) for name, folder in folders.items()]
    pairs = set.intersection(*({*frame[PAIR].itertuples(index=False, name=None)} for frame in frames))
    found = pd.concat(frames)
    found = found[[pair in pairs for pair in found[PAIR].itertuples(index=False, name=None)]]
    if OWN not in {*found.kind}:
        raise DataError(f"{' '.join(runs)}: no task is in all of these")
    return found.reset_index(drop=True)


def _read(folder: Path) -> pd.DataFrame:
    return pd.concat([_scores(folder / "scores.csv", OWN), _scores(folder / "ood.csv", OTHER)])


def _scores(file: Path, kind: str) -> pd.DataFrame:
    columns = [name for name in COLUMNS if kind == OTHER or name != "test_set"]
    found = read_csv(file, columns, "of a run of the main pipeline", {"task": str, "test_set": str})
    found = found.assign(test_set=found.task) if kind == OWN else found
    return found.loc[found.variant.isin(SHORT), COLUMNS].assign(kind=kind)


def tables(found: pd.DataFrame, by: str) -> list[Table]:
    """For each kind of test set and measure: a line for each run, the models, and the graft less the fine-tuned model."""
    told = (
        "n: of cells, each a task, a test set and a seed; means and 95 % intervals: over tasks, in each of which its test sets and "
        "seeds are averaged first; no interval for one task or one seed"
    )
    notes = [*(f"{short}: {words(variant)}" for variant, short in SHORT.items()), told]
    made = [
        Table(f"{MEASURES[measure]} in %, {TEST_SETS[kind]}", [by], _columns(part, measure), lines)
        for kind, part in found.groupby("kind", sort=False)
        for lines in [[Line(name, rows) for name, rows in part.groupby("run", sort=False)]]
        for measure in MEASURES
    ]
    return [replace(made[0], notes=notes), *made[1:]]


def models(part: pd.DataFrame, measure: str) -> list[str]:
    """Which there are on these test sets; a temperature changes no prediction, so the score of one tells nothing."""
    there = {*part.variant} - ({TEMPERED} if measure == "score" else set())
    return [variant for variant in SHORT if variant in there]


def _columns(part: pd.DataFrame, measure: str) -> list[Column]:
    shown = models(part, measure)
    others = [variant for variant in (FINETUNED, TEMPERED) if variant in shown]
    means = {variant: partial(mean_of, variant=variant, measure=measure) for variant in shown}
    gaps = {other: partial(difference, measure=measure, other=other) for other in others}
    return [
        Column("n", lambda rows: (rows.variant == GRAFTED).sum(), str),
        *(Column(SHORT[variant], mean, Estimate.text) for variant, mean in means.items()),
        *(Column(f"graft - {SHORT[other]}", gap, Estimate.in_points) for other, gap in gaps.items()),
    ]


def mean_of(rows: pd.DataFrame, variant: str, measure: str) -> Estimate:
    """Mean of a model over tasks; other test sets are averaged in the task that was trained on first."""
    return estimate(_values(rows, variant, measure))


def difference(rows: pd.DataFrame, measure: str, other: str = FINETUNED) -> Estimate:
    """The graft less the fine-tuned model, or another one."""
    return paired(_values(rows, GRAFTED, measure), _values(rows, other, measure))


def _values(rows: pd.DataFrame, variant: str, measure: str) -> pd.Series:
    return rows[rows.variant == variant].set_index([*PAIR, "seed"])[measure]


def scores_by_run(found: pd.DataFrame, by: str) -> Figure:
    """A panel for each kind of test set and measure, a line for each model."""
    kinds = [*dict.fromkeys(found.kind)]
    drawn = framed(
        PANEL_HEIGHT * len(MEASURES), _title(found, by), sample(found),
        "Means over tasks (those of other test sets averaged in each task that was trained on first), with 95 % intervals over tasks "
        "where there are two tasks and two seeds.",
        [words(variant) for variant in models(found, "ece")],
    )  # fmt: skip
    panels = drawn.subplots(len(MEASURES), len(kinds), squeeze=False, sharex=True, sharey="row")
    for row, measure in zip(panels, MEASURES, strict=True):
        for panel, kind in zip(row, kinds, strict=True):
            _draw(panel, found[found.kind == kind], measure)
            if measure == "score":
                panel.set_title(TEST_SETS[kind])
        row[0].set_ylabel(f"{MEASURES[measure]} in %")
    for panel in panels[-1]:
        panel.set_xlabel(by)
    explain(drawn, panels[:, 0])
    return drawn


def _draw(panel: Axes, part: pd.DataFrame, measure: str) -> None:
    runs = [*part.groupby("run", sort=False)]
    for number, variant in enumerate(shown := models(part, measure)):
        means = [mean_of(rows, variant, measure) for _, rows in runs]
        places = np.arange(len(runs)) + ASIDE * (number - (len(shown) - 1) / 2)
        panel.plot(places, [100 * value.mean for value in means], label=words(variant), **STYLES[variant])
        for place, value in zip(places, means, strict=True):
            if value.error is not None:
                ends = [100 * value.low, 100 * value.high]
                panel.plot([place, place], ends, color=STYLES[variant]["color"], linewidth=0.9)
    panel.set_xticks(range(len(runs)), [name for name, _ in runs])


def _title(found: pd.DataFrame, by: str) -> str:
    """The gain or loss of the graft, out of distribution if there are such test sets."""
    kind = OTHER if OTHER in {*found.kind} else OWN
    part = found[found.kind == kind]
    gaps = [f"{difference(rows, 'score').in_points()} at {name}" for name, rows in part.groupby("run", sort=False)]
    where = "Out of distribution" if kind == OTHER else "On the task's own test set"
    return f"{where} the graft's score less the fine-tuned model's, in points by {by}: {', '.join(gaps)}"


def sample(found: pd.DataFrame) -> str:
    """The number of runs, tasks, pairs and seeds."""
    own = found[found.kind == OWN]
    pairs = found.loc[found.kind == OTHER, PAIR].drop_duplicates()
    others = f", {counted(len(pairs), 'pair')} with another test set" if len(pairs) else ""
    return f"{counts(run=own.run.nunique(), task=own.task.nunique())} ({', '.join(dict.fromkeys(own.task))}){others}, {seeds_of(own, 'run')}"


if __name__ == "__main__":
    guarded("scores_by_run", main)
