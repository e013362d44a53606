"""The report on multi-task learning: the joint model, relative gains, overlap of regions, and what the claims measure."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import counts, off_line, points, small_percent, without_gain, words
from stages.lib.report.load import published
from stages.lib.report.stats import Estimate, estimate, known
from stages.lib.report.table import Column, Line, Table, share, shown, stored
from stages.multitask import contrasts
from stages.multitask.contrasts import Contrast, Matrix, matrices
from stages.multitask.load import MOVEMENT, SINGLE, Multitask

HERE = Path(__file__).parent
# what the paper gives a number for
PUBLISHED = {contrasts.UNION_IN: "union", contrasts.PURIFIED_IN: "purified"}


def report(data: Multitask, here: str) -> Report:
    """Tables, what is off, and which effects of the paper show; `here` is what all were measured with."""
    models = len(data.levels[["paradigm", "seed"]].drop_duplicates())
    size = f"{here}; {counts(**{'joint model': models})} of {counts(task=len(data.tasks))}: {', '.join(data.tasks)}"
    off = [] if len(data.gains) else ["skill, transfer" if len(data.levels) else "joint, and all that follow from it"]
    facts = off_line(off)
    facts += [f"similar, as the group {name} has them: {', '.join(tasks)}" for name, tasks in data.groups.items()]
    given_way = data.regions[data.regions.kept == MOVEMENT]
    if len(given_way):
        asked = data.regions.kept.notna().sum()
        facts.append(
            f"regions of the joint model's largest movement, which agreed more on dev than the learned one: "
            f"{len(given_way)} of {asked} ({', '.join(f'{row.task}-{row.seed}' for row in given_way.itertuples())})"
        )
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, data, here)
    return Report("Multi-task learning", size, shown(tables(data)), facts, claims)


# --- Tables and numbers ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def tables(data: Multitask) -> list[Table]:
    """The joint models, relative gains and overlaps."""
    return [joint_table(data), gain_table(data), overlap_table(data)]


def _difference(levels: pd.DataFrame) -> Estimate:
    return estimate((levels.joint - levels.single).set_axis(pd.MultiIndex.from_frame(levels[["task", "seed"]])))


JOINT_COLUMNS = [
    *(share(name, name) for name in ("pretrained", "single", "joint")),
    Column("joint - single", lambda levels: float((levels.joint - levels.single).mean()), points, "difference"),
    Column("without a gain", lambda levels: int(levels.missing.sum()), str, "undefined"),
]


def joint_table(data: Multitask) -> Table:
    """Does one model of all tasks do as well as one for each?"""
    lines = []
    marked = data.levels.assign(missing=~data.levels.gained.astype(bool))
    for paradigm, levels in marked.groupby("paradigm", sort=False):
        lines += [
            Line(words(paradigm)),
            *(Line(task, levels[levels.task == task], (paradigm, task)) for task in data.tasks),
        ]
        measured = dict.fromkeys(("pretrained", "single", "joint"), "mean") | {"missing": "sum"}
        lines.append(Line("average", levels.groupby("task").agg(measured), (paradigm, "average"), "average"))
    rows = ", ".join(f"{task} {n}" for task, n in data.levels.groupby("task", sort=False).n.min().items())
    notes = [
        f"mean (standard deviation over seeds; of averages over tasks); differences in percentage points; test rows: {rows}",
        "single: fine-tuned on that task alone, by the main pipeline; pretrained: under the joint model's heads",
        f"without a gain: cells in which the joint model gained less than {100 * data.least_gain:g} points (summary.least_gain), "
        "by which equation 5 would divide; there are no relative gains in these, and they are in no mean",
    ]
    return Table("One model for all tasks: accuracy in %", ["task"], JOINT_COLUMNS, lines, notes, "joint")


def _kinds(
    data: Multitask, of: Callable[[Matrix, str], Estimate], kinds: Iterable[str], paper: Mapping[str, float]
) -> list[Line]:
    """A heading for each matrix, and a line for each of these kinds that it has."""
    lines = []
    for matrix in matrices(data):
        values = {kind: of(matrix, kind) for kind in kinds}
        place = (matrix.paradigm, matrix.localizer, f"{matrix.sparsity:g}")
        these = [
            Line(kind, (matrix, kind, value), (*place, _key(kind)), paper={"mean": paper[kind]} if kind in paper else None)
            for kind, value in values.items()
            if value.n
        ]  # fmt: skip
        lines += [Line(matrix.title), *these] if these else []
    return lines


def _key(kind: str) -> str:
    return kind.replace(",", "").replace(" ", "_")


SIZE = Column("tasks", lambda line: line[2].tasks, str)


def gain_table(data: Multitask) -> Table:
    """Figure 8b to d in a row each."""
    theirs = published(HERE / "paper.yaml")["multitask"]
    paper = {kind: theirs[name] for kind, name in PUBLISHED.items()}
    kinds = [
        contrasts.OWN, contrasts.OTHERS, contrasts.ALIKE, contrasts.UNALIKE,
        contrasts.UNION_IN, contrasts.UNION_OUT, contrasts.PURIFIED_IN, contrasts.PURIFIED_OUT,
    ]  # fmt: skip
    notes = [
        "mean (standard deviation) over the tasks that are tested, of which there are so many",
        "0: the pretrained model, 100: the joint one (equation 5), both under the joint model's heads",
        "similar: some group of multitask.groups has both tasks; paper: about, RoBERTa-base, 8 tasks, section 5.1",
    ]
    columns = [SIZE, share("relative gain", lambda line: line[2], "mean")]
    lines = _kinds(data, Matrix.gain, kinds, paper)
    return Table("Relative gain in %, by whose region is grafted", ["grafted"], columns, lines, notes, "gain")


def overlap_table(data: Multitask) -> Table:
    """Figure 8a, between its floor and its ceiling."""
    kinds = [
        contrasts.ONE_MODEL, contrasts.ONE_MODEL_ALIKE, contrasts.ONE_MODEL_UNALIKE,
        contrasts.TWO_SEEDS, contrasts.TWO_SEEDS_OTHER,
    ]  # fmt: skip
    columns = [
        SIZE,
        share("overlap", lambda line: line[2], "mean"),
        Column("chance", lambda line: float(line[0].overlaps[line[1]].chance.mean()), small_percent, "chance"),
    ]
    notes = [
        "mean (standard deviation) over ordered pairs of tasks; chance: what random regions of these sizes give",
        "two seeds, one task: the ceiling, as far as two joint models can agree on a task's region; needs two seeds or more",
    ]
    lines = _kinds(data, Matrix.overlap, kinds, {})
    return Table("Overlap |A ∩ B| / |B| of regions in %", ["regions of"], columns, lines, notes, "overlap")


def headline(data: Multitask) -> dict[str, Any]:
    """The numbers for `dvc metrics`: of the first paradigm, and of its first matrix of regions."""
    found: dict[str, Any] = {}
    if len(data.levels):
        first = data.levels[data.levels.paradigm == data.levels.paradigm.iloc[0]]
        found["joint_minus_single"] = _difference(first).mean
    for matrix in matrices(data)[:1]:
        found["gain"] = {_key(kind): matrix.gain(kind).mean for kind in (contrasts.OWN, contrasts.OTHERS)}
        found["overlap"] = {
            _key(kind): matrix.overlap(kind).mean for kind in (contrasts.ONE_MODEL, contrasts.TWO_SEEDS)
        }
    return found


def details(data: Multitask) -> dict[str, Any]:
    """Every number: tables by name, and what the claims measure by measure and regions."""
    measured = {
        matrix.name: known({name: of(matrix).value for name, of in BY_MATRIX.items()}) | {"similarity": matrix.rho}
        for matrix in matrices(data)
    }
    return {**stored(tables(data)), "measured": measured}


# --- What the claims measure -----------------------------------------------------------------------------------


def joint(data: Multitask) -> list[Finding]:
    """Accuracy of the joint model less that of single-task ones, for each paradigm."""
    findings = []
    for paradigm, levels in data.levels.groupby("paradigm", sort=False):
        means = levels.groupby("task", sort=False)[["joint", "single"]].mean()
        fields = {"paradigm": words(paradigm), "first": means.joint.mean(), "second": means.single.mean()}
        gap = means.joint - means.single
        worse = lambda limit, gap=gap: [f"{task} {points(value)}" for task, value in gap.items() if value < limit]  # noqa: E731
        findings.append(Finding(_difference(levels), fields, worse, size=words(paradigm)))
    return findings


def own(matrix: Matrix) -> Finding:
    """The gain from the own region less that from others."""
    best, cells = matrix.highest_own()
    grid = matrix.gain_grid(SINGLE).mean
    beaten = [task for task in matrix.data.tasks if grid[task].max() > grid.loc[task, task]]
    return _apart(matrix, matrix.gain_contrast(contrasts.OWN, contrasts.OTHERS), beaten, best=best, cells=cells)


def union_share(matrix: Matrix) -> Finding:
    """The gain from unions on their own tasks."""
    fields = {"name": matrix.name, "left_out": _left_out(matrix)}
    return Finding(matrix.gain(contrasts.UNION_IN), fields, size=_size(matrix))


def similarity(matrix: Matrix) -> Finding:
    """Rank correlation of overlap and transfer."""
    value, rho = matrix.similarity, matrix.rho
    interval = f"95 % interval {rho['low']:+.2f} to {rho['high']:+.2f}" if "low" in rho else "no interval"
    fields = {"rho": rho.get("mean"), "interval": f"{interval}; {value.sample()}", "left_out": _left_out(matrix)}
    return Finding(value, fields, size=_size(matrix))


def _apart(matrix: Matrix, sides: Contrast, exceptions: Iterable[str] = (), **fields: Any) -> Finding:
    value = sides.value
    fields |= {"name": matrix.name, "first": sides.first, "second": sides.second, "left_out": _left_out(matrix)}
    alone = value.error is None and min(value.tasks, value.seeds) > 1
    void = "; one side rests on a single task, so it says nothing about others" if alone else ""
    return Finding(value, fields, [*exceptions], void, _size(matrix))


def _size(matrix: Matrix) -> str:
    return f"{words(matrix.paradigm)}, {words(matrix.localizer)}, regions of {small_percent(matrix.sparsity)}"


def _left_out(matrix: Matrix) -> str:
    levels = matrix.data.levels[matrix.data.levels.paradigm == matrix.paradigm]
    missing = int((~levels.gained.astype(bool)).sum())
    return without_gain(missing, len(levels), "the joint model", matrix.data.least_gain)


BY_MATRIX: dict[str, Callable[[Matrix], Finding]] = {
    "own": own,
    "similar_gain": lambda matrix: _apart(matrix, matrix.gain_contrast(contrasts.ALIKE, contrasts.UNALIKE)),
    "union_share": union_share,
    "isolation": lambda matrix: _apart(matrix, matrix.union_contrast(contrasts.UNION_IN, contrasts.UNION_OUT)),
    "purified": lambda matrix: _apart(matrix, matrix.union_contrast(contrasts.PURIFIED_IN, contrasts.UNION_IN)),
    "disjoint": lambda matrix: _apart(matrix, matrix.overlap_contrast(contrasts.ONE_MODEL, contrasts.TWO_SEEDS)),
    "same_task": lambda matrix: _apart(matrix, matrix.overlap_contrast(contrasts.TWO_SEEDS, contrasts.TWO_SEEDS_OTHER)),
    "similar_overlap": lambda matrix: _apart(
        matrix, matrix.overlap_contrast(contrasts.ONE_MODEL_ALIKE, contrasts.ONE_MODEL_UNALIKE)
    ),
    "similarity": similarity,
}
MEASURES = {"joint": joint} | {
    name: lambda data, of=of: [of(matrix) for matrix in matrices(data)] for name, of in BY_MATRIX.items()
}
