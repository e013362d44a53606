"""The tables of the surgical report."""

from typing import Any

import pandas as pd

from stages.lib.report.document import Row, Table
from stages.lib.report.format import percent, points
from stages.lib.report.stats import Difference, Mean, mean_of, paired
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical, layer_text
from stages.surgical.selections import order

CELLS = "n: cells, one for each task and seed; mean (standard deviation over cells)"
INDEX = ["task", "seed"]


def tables(data: Surgical) -> list[Table]:
    """Tables in the order in which they are read; those of stages that are off are left out."""
    found = [score_table(data), variant_table(data), selection_table(data), robustness_table(data), bridge_table(data)]
    return [table for table in found if table.rows]


def score_table(data: Surgical) -> Table:
    """Layers in the order of their scores, task by task."""
    rows = []
    for task, scores in data.chosen().groupby("task", sort=False):
        mean = scores.groupby("layer").mean()
        seeds = scores.index.get_level_values("seed").nunique()
        share = mean.max() / mean.sum()
        rows.append(Row("ours", [task, str(seeds), layer_text(order(mean.tolist())).replace(",", ""), percent(share)]))
    surgery, notes = data.settings.surgery, []
    for text, value in (
        ("two tasks of a seed", ranking.between(data, "seed", "task")),
        ("two seeds of a task", ranking.between(data, "task", "seed")),
        ("two random heads of a cell", ranking.between_heads(data)),
    ):
        if value.n:
            notes.append(f"Spearman correlation of the scores of {text}: {plain(value)} (n = {value.n} pairs)")
    title = (
        f"FIM score of layers: {surgery.score.target}, {surgery.score.aggregation}, {surgery.score.examples} examples"
    )
    return Table(title, ["task", "n", "layers, highest score first", "share of the first (%)"], rows, notes)


def variant_table(data: Surgical) -> Table:
    """How far other ways to score give the same ranking."""
    rows = [
        Row(
            "ours",
            [f"{way['target']}, {way['aggregation']}", str(way["examples"]), str(way["kendall"].n), plain(way["kendall"]),
             plain(way["spearman"])],
        )
        for way in ranking.variants(data)
    ]  # fmt: skip
    notes = [CELLS, "1: the same ranking; the way that chooses the layers of surgery is among the rows"]
    header = ["target, aggregation", "examples", "n", "Kendall tau-b", "Spearman"]
    return Table("Ways to score: agreement with the one that chooses", header, rows, notes)


def selection_table(data: Surgical) -> Table:
    """Scores of every selection, against all layers and against random ones."""
    frame, flagged = data.surgery, data.flagged()
    tasks = [*dict.fromkeys(frame.task)]
    rows = []
    for selection, runs in frame.groupby("selection", sort=False):
        share = (runs.trained / runs.model_parameters).mean()
        values = [mean_of(score_of(runs[runs.task == task])).text() for task in tasks]
        value = mean_of(score_of(runs))
        gaps = [gap(against(data, selection, other)) for other in ("all", f"random_{_size(runs)}")]
        idle = f"{(flagged.selection == selection).sum()} of {len(runs)}"
        rows.append(Row("ours", [selection, percent(share), str(value.n), *values, value.text(), *gaps, idle]))
    header = ["selection", "trained (%)", "n", *tasks, "mean", "less all", "less random", "flagged"]
    notes = [
        f"score in %; {CELLS}; the draws of a random selection count as one cell, their mean",
        "trained: share of the model's parameters, a new head included",
        "differences in percentage points, paired by cell, with a t-interval that takes cells as independent",
        flag_note(data),
    ]
    return Table("Fine-tuning of selected layers", header, rows, notes)


def flag_note(data: Surgical) -> str:
    """What the flagged runs are, and how many of each task; surgery.csv names them."""
    rows, margin = data.flagged(), points(data.settings.surgical.margin).lstrip("+")
    counts = [
        f"{(rows.task == task).sum()} of {len(runs)} of {task} ({percent(runs.majority.mean())} %)"
        for task, runs in data.surgery.groupby("task", sort=False)
    ]
    words = f"runs less than {margin} points above the share of the most frequent label (in brackets), or below it"
    return f"flagged: {words}: {', '.join(counts)}; plots/surgical/surgery.csv names them"


def robustness_table(data: Surgical) -> Table:
    """Agreement of the ranking with that before training, and how much training did."""
    frame = ranking.checkpoints(data)
    rows = []
    for (task, step), now in frame.groupby(["task", "step"], sort=False):
        ranks = [plain(mean_of(now[name])) for name in ("spearman", "kendall")]
        rest = [mean_of(now[name]).text() for name in ("moved", "dev_accuracy")]
        rows.append(Row("ours", [task, str(step), str(len(now)), *ranks, *rest]))
    header = ["task", "step", "n", "Spearman", "Kendall tau-b", "moved (%)", "dev accuracy (%)"]
    notes = [
        "all layers are trained; agreement of the ranking with that of step 0; mean (standard deviation over seeds)",
        "moved: norm of the movement of all layers, of their pretrained norm",
    ]
    return Table("The ranking during fine-tuning", header, rows, notes)


def bridge_table(data: Surgical) -> Table:
    """Do the scores point to where the learned grafts lie?"""
    scores, regions, moved = data.chosen(), ranking.region_share(data), ranking.movement(data)
    rows = []
    for task in dict.fromkeys(data.regions.task):
        own = [series[series.index.get_level_values("task") == task] for series in (scores, regions, moved)]
        pairs = [
            ranking.agreement(own[0], own[1]),
            ranking.agreement(own[0], own[2]),
            ranking.agreement(own[1], own[2]),
        ]
        caught = [ranking.caught(data, size) for size in _shown_sizes(data)]
        shares = [_caught_text(frame[frame.task == task]) for frame in caught]
        rows.append(Row("ours", [task, str(pairs[0].n), *map(plain, pairs), *shares]))
    header = ["task", "n", "score, graft", "score, movement", "graft, movement"]
    header += [f"graft in top {size} (%)" for size in _shown_sizes(data)]
    notes = [
        "Spearman correlations over layers; graft: share of the learned mask of the main pipeline, over chance",
        "graft in top k: share of the learned mask in the k layers with the highest scores, in brackets a random mask's",
    ]
    return Table("Where the scores point and where grafts lie", header, rows, notes)


def score_of(runs: pd.DataFrame) -> pd.Series:
    """(task, seed) -> score, the mean over draws."""
    return runs.groupby(INDEX, sort=False)["score"].mean()


def against(data: Surgical, selection: str, other: str, cells: set[tuple] | None = None) -> Difference:
    """Score of a selection less that of another, paired by cell, or by these; of no cells if one wasn't made."""
    runs = data.surgery
    if cells is not None:
        runs = runs[[cell in cells for cell in zip(runs.task, runs.seed, strict=True)]]
    first, second = (score_of(runs[runs.selection == name]) for name in (selection, other))
    return paired(first, second) if selection != other else paired(first.iloc[:0], first.iloc[:0])


def gap(value: Difference) -> str:
    """A difference with its interval, empty without cells."""
    if not value.n:
        return ""
    interval = "" if value.low is None else f" ({points(value.low)} to {points(value.high)})"
    return f"{points(value.mean)}{interval}"


def plain(value: Mean) -> str:
    """A correlation with its deviation: "0.94 (0.05)"."""
    if not value.n:
        return ""
    return f"{value.mean:.2f}" + ("" if value.sd is None else f" ({value.sd:.2f})")


def _size(runs: pd.DataFrame) -> Any:
    size = runs["size"].iloc[0]
    return None if pd.isna(size) else int(size)


def _shown_sizes(data: Surgical) -> list[int]:
    return ranking.sizes(data) or [1]


def _caught_text(rows: pd.DataFrame) -> str:
    return f"{percent(rows.share.mean())} ({percent(rows.chance.mean())})" if len(rows) else ""
