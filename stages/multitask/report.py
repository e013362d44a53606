"""The report on multi-task learning: the joint model, relative gains, overlap of regions, and claims."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.report import document
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report, Row
from stages.lib.report.format import UNKNOWN, counted, percent, points, small_percent
from stages.lib.report.load import published
from stages.lib.report.stats import Estimate, mean_of, paired
from stages.lib.report.table import Column, Line, Table, differences, numbers_of, share
from stages.multitask import contrasts
from stages.multitask.contrasts import Matrix, matrices
from stages.multitask.load import SINGLE, Multitask

CLAIMS = Path(__file__).with_name("claims.yaml")
PAPER = Path(__file__).with_name("paper.yaml")
# what the paper gives a number for
PUBLISHED = {contrasts.UNION_IN: "union", contrasts.PURIFIED_IN: "purified"}


def report(data: Multitask) -> Report:
    """Tables, what is off, and which effects of the paper show."""
    models = counted(len(data.levels[["paradigm", "seed"]].drop_duplicates()), "joint model")
    size = f"{models} of {counted(len(data.tasks), 'task')}: {', '.join(data.tasks)}"
    groups = [f"similar, as the group {name} has them: {', '.join(tasks)}" for name, tasks in data.groups.items()]
    tables = [
        joint_table(data).text(),
        undefined_table(data).text(),
        gain_table(data),
        overlap_table(data),
        similarity_table(data),
    ]
    return Report(
        "Multi-task learning", size, [table for table in tables if table.rows], [*off(data), *groups], claims(data)
    )


def off(data: Multitask) -> list[str]:
    """Which stages are off, so that there is nothing of them."""
    if data.levels.empty:
        return ["off, so without tables and figures: joint, and all that follow from it"]
    return ["off, so without tables and figures: skill, transfer"] if data.gains.empty else []


# --- Tables ----------------------------------------------------------------------------------------------------


def _joint_less_single(levels: pd.DataFrame) -> Estimate:
    return paired(levels.joint, levels.single)


JOINT_COLUMNS = [
    Column("n", lambda levels: str(levels.groupby("task")["n"].first().sum()), str),
    *(share(name, name) for name in ("pretrained", "single", "joint")),
    *differences("joint - single", _joint_less_single, "difference"),
    Column("", lambda levels: int((~levels.gained.astype(bool)).sum()), str, "undefined"),
]


def joint_table(data: Multitask) -> Table:
    """Does one model of all tasks do as well as one for each?"""
    lines = []
    for paradigm, levels in data.levels.groupby("paradigm", sort=False):
        lines += [Line(paradigm), *(Line(task, levels[levels.task == task]) for task in data.tasks)]
        lines.append(Line("average", levels, paradigm, kind="average"))
    notes = [
        "mean (standard deviation over seeds); n: test rows",
        "single: fine-tuned on that task alone, by the main pipeline; pretrained: under the joint model's heads",
        "joint - single: mean over seeds and 95 % t-interval over cells (a task in a seed), in percentage points",
    ]
    stored = ("pretrained", "single", "joint", "difference", "undefined")
    return Table("One model for all tasks: accuracy in %", ["task"], JOINT_COLUMNS, lines, notes, stored=stored)


UNDEFINED_COLUMNS = [
    Column("paradigm", lambda level: level.paradigm, str),
    Column("seed", lambda level: level.seed, str),
    Column("pretrained", lambda level: level.pretrained, percent),
    Column("joint", lambda level: level.joint, percent),
    Column("gain", lambda level: level.joint - level.pretrained, points),
]


def undefined_table(data: Multitask) -> Table:
    """Where equation 5 would divide by next to nothing."""
    lines = [Line(level.task, level) for level in data.levels[~data.levels.gained.astype(bool)].itertuples()]
    title = f"No relative gains here: the joint model gained less than {100 * data.least_gain:g} points (multitask.least_gain)"
    note = "equation 5 divides by this gain; such cells are hatched in the figures and left out of all means"
    return Table(title, ["task"], UNDEFINED_COLUMNS, lines, [note])


def gain_table(data: Multitask) -> document.Table:
    """Figure 8b to d in a row each."""
    rows = []
    for matrix in matrices(data):
        selected = matrix.gains.selected.min()
        said = _gain_rows(matrix)
        rows += [Row("group", [f"{matrix.title} ({selected:,} parameters or more)"]), *said] if said else []
    notes = [
        "mean (standard deviation over cells), with the number of cells n: tasks and seeds, of unions also unions",
        "0: the pretrained model, 100: the joint one (equation 5), both under the joint model's heads",
        "similar: some group of multitask.groups has both tasks; paper: RoBERTa-base, 8 tasks, section 5.1",
    ]
    title = "Relative gain in %, by whose region is grafted"
    return document.Table(title, ["grafted", "n", "relative gain"], rows, notes)


def _gain_rows(matrix: Matrix) -> list[Row]:
    rows, theirs = [], published(PAPER)["multitask"]
    for kind in contrasts.GAIN_KINDS:
        value = mean_of(matrix.gain_by_cell(kind))
        if value.n:
            rows.append(Row("ours", [kind, str(value.n), value.text()]))
        if value.n and kind in PUBLISHED:
            rows.append(Row("paper", ["paper", "", f"about {percent(theirs[PUBLISHED[kind]], 0)}"]))
    return rows


def overlap_table(data: Multitask) -> document.Table:
    """Figure 8a, between its floor and its ceiling."""
    rows = []
    for matrix in matrices(data):
        rows.append(Row("group", [matrix.title]))
        for kind in contrasts.OVERLAP_KINDS:
            pairs = matrix.overlap_rows(kind)
            value = mean_of(pairs.overlap)
            if value.n:
                rows.append(Row("ours", [kind, str(value.n), value.text(), small_percent(pairs.chance.mean())]))
    notes = [
        "mean (standard deviation over pairs); n: ordered pairs of regions; chance: what random regions of these sizes give",
        "two seeds, one task: the ceiling, as far as two joint models can agree on a task's region; needs two seeds or more",
    ]
    header = ["regions of", "n", "overlap", "chance"]
    return document.Table("Overlap |A ∩ B| / |B| of regions in %", header, rows, notes)


def similarity_table(data: Multitask) -> document.Table:
    """Are regions that overlap more those that transfer more?"""
    rows = []
    for matrix in matrices(data):
        value = matrix.similarity
        texts = [UNKNOWN if one is None else f"{one:+.2f}" for one in (value.rho, value.low, value.high)]
        rows.append(Row("ours", [matrix.title, str(value.pairs), *texts]))
    notes = [
        "Spearman's correlation of overlap and relative gain over ordered pairs of different tasks, both means over seeds",
        "95 %: bootstrap over tasks, since pairs with a task in common are not independent; wide where there are few tasks",
    ]
    return document.Table("Overlap against transfer", ["regions", "pairs", "rho", "95 % from", "95 % to"], rows, notes)


# --- Numbers ---------------------------------------------------------------------------------------------------


def numbers(data: Multitask) -> dict[str, Any]:
    """The numbers for `dvc metrics`: nested dicts of n, mean and sd over cells (see contrasts.py), without what is off.

    joint       paradigm -> pretrained, single, joint, difference (joint - single), undefined (cells without gains)
    gain        paradigm -> localizer -> sparsity -> own, others, ... (contrasts.GAIN_KINDS), and differences
    overlap     paradigm -> localizer -> sparsity -> ... (contrasts.OVERLAP_KINDS), chance, and a difference
    similarity  paradigm -> localizer -> sparsity -> rho, low, high, pairs
    """
    stored: dict[str, Any] = {"joint": joint_table(data).numbers()}
    for name, part in (("gain", _gains), ("overlap", _overlaps), ("similarity", _similarity)):
        stored[name] = {}
        for matrix in matrices(data):
            place = stored[name].setdefault(matrix.paradigm, {}).setdefault(matrix.localizer, {})
            place[f"{matrix.sparsity:g}"] = part(matrix)
    return stored


def _gains(matrix: Matrix) -> dict[str, Any]:
    values = {_key(kind): mean_of(matrix.gain_by_cell(kind)) for kind in contrasts.GAIN_KINDS}
    values["own_minus_others"] = matrix.gain_difference(contrasts.OWN, contrasts.OTHERS)
    values["purified_minus_union"] = matrix.gain_difference(contrasts.PURIFIED_IN, contrasts.UNION_IN)
    return {name: numbers_of(value) for name, value in values.items() if value.n}


def _overlaps(matrix: Matrix) -> dict[str, Any]:
    rows = {_key(kind): matrix.overlap_rows(kind) for kind in contrasts.OVERLAP_KINDS}
    values = {name: mean_of(pairs.overlap) for name, pairs in rows.items() if len(pairs)}
    values["chance"] = mean_of(matrix.overlap_rows(contrasts.SAME_MODEL).chance)
    likeness = matrix.overlap_difference(contrasts.SAME_MODEL_ALIKE, contrasts.SAME_MODEL_UNALIKE)
    values |= {"similar_minus_dissimilar": likeness} if likeness.n else {}
    return {name: numbers_of(value) for name, value in values.items()}


def _similarity(matrix: Matrix) -> dict[str, Any]:
    value = matrix.similarity
    return {"pairs": value.pairs, "rho": value.rho, "low": value.low, "high": value.high}


def _key(kind: str) -> str:
    return kind.replace(",", "").replace(" ", "_")


# --- Claims ----------------------------------------------------------------------------------------------------


def claims(data: Multitask) -> list[document.Claim]:
    """Those of claims.yaml for each joint paradigm, then for each matrix."""
    statements = read_statements(CLAIMS)
    of_models = [statement for statement in statements if statement.measure == "joint"]
    of_matrices = [statement for statement in statements if statement.measure != "joint"]
    made = [judge(of_matrices, MEASURES, matrix) for matrix in matrices(data)]
    return [*judge(of_models, {"joint": joint}, data), *(claim for claims in made for claim in claims)]


def joint(data: Multitask) -> list[Finding]:
    """Accuracy of the joint model less that of single-task ones, for each paradigm."""
    findings = []
    for paradigm, levels in data.levels.groupby("paradigm", sort=False):
        means = levels.groupby("task", sort=False)[["joint", "single"]].mean()
        findings.append(Finding(_joint_less_single(levels), {"paradigm": paradigm}, partial(_worse, means)))
    return findings


def _worse(means: pd.DataFrame, limit: float) -> list[str]:
    return [task for task, row in means.iterrows() if row.joint < row.single + limit]


def _finding(matrix: Matrix, difference: Estimate, exceptions: tuple[str, ...] = (), **fields: Any) -> list[Finding]:
    return [Finding(difference, {"matrix": matrix.title, **fields}, [*exceptions])]


def diagonal(matrix: Matrix) -> list[Finding]:
    """The gain from the own region less that from others."""
    best, cells = matrix.highest_own()
    grid = matrix.gain_grid(SINGLE).mean
    beaten = tuple(task for task in matrix.data.tasks if grid[task].max() > grid.loc[task, task])
    difference = matrix.gain_difference(contrasts.OWN, contrasts.OTHERS)
    return _finding(matrix, difference, beaten, best=best, cells=cells)


def isolated(matrix: Matrix) -> list[Finding]:
    """The gain of a region's own task less that of others."""
    rows = matrix.gain_rows(contrasts.OTHERS)
    elsewhere = rows.groupby(["source", "seed"])["gain"].mean().rename_axis(contrasts.CELL)
    return _finding(matrix, paired(matrix.gain_by_cell(contrasts.OWN), elsewhere))


def unions(matrix: Matrix, first: str, second: str) -> list[Finding]:
    """Gains of two kinds, by union and seed."""
    sides = [matrix.gain_by_cell(kind).groupby(["source", "seed"]).mean() for kind in (first, second)]
    return _finding(matrix, paired(*sides))


def similarity(matrix: Matrix) -> list[Finding]:
    """Rank correlation of overlap and transfer, with its bootstrap interval."""
    value = matrix.similarity
    if value.rho is None:
        return []
    interval = "no interval" if value.low is None else f"95 % interval {value.low:+.2f} to {value.high:+.2f}"
    return _finding(matrix, Estimate(value.pairs, value.rho, None, value.low, value.high, 0), interval=interval)


MEASURES = {
    "diagonal": diagonal,
    "isolated": isolated,
    "gains": lambda matrix, *kinds: _finding(matrix, matrix.gain_difference(*kinds)),
    "overlaps": lambda matrix, *kinds: _finding(matrix, matrix.overlap_difference(*kinds)),
    "unions": unions,
    "similarity": similarity,
}
