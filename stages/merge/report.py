"""The report of merged models: how good and how large they are, on each task, and how often grafts collide."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.merging.names import MEAN, MERGED, read_localized
from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.claims import Finding, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import counts, percent, points, small_percent, without_gain, words
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.report.stats import Estimate, estimate, known, mean_of
from stages.lib.report.table import Column, Line, Table, share, shown, stored
from stages.merge.settings import CombinationParams, MergeParams

CLAIMS = Path(__file__).with_name("claims.yaml")
STITCHED = f"stitch_{MEAN}"
SINGLE_NAMES = {
    PRETRAINED: "pretrained, own heads",
    GRAFTED: "own graft of each task",
    FINETUNED: "own fine-tuned model of each task",
}
SINGLES = (*SINGLE_NAMES,)
UNDEFINED = float("nan")
MEGA = 1e6
FRAMES = {
    "scores": ["group", "method", "seed", "task", "n", "score", "accuracy", "ece", "retained", "gain", "single", "own", "constant"],
    "models": ["group", "method", "seed", "kind", "alpha", "bytes", "head_bytes", "single_bytes"],
    "dev": ["group", "method", "seed", "alpha", "normalised"],
    "collisions": ["group", "seed", "tasks", "graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding"],
}  # fmt: skip


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Merged:
    """groups: name -> tasks.  Tidy frames, measures as fractions 0..1:

    scores: one row for each (group, method, seed, task); the single-task models are methods too, called
    pretrained, finetuned and grafted.  `single` is the score of the task's own model of the same kind,
    `own` is score / single, `retained` score / fine-tuned score, and `gain` the relative gain between the pretrained and the
    fine-tuned model, undefined where that gained less than `least_gain`.
    models: one row for each merged model; `kind` is the single-task model that it is made of.  dev: its curve of
    alphas.  collisions: one row for each (group, seed) that has grafts.
    """

    groups: dict[str, list[str]]
    methods: list[str]
    seeds: list[int]
    frames: dict[str, pd.DataFrame]
    least_gain: float

    def kind(self, method: str) -> str:
        """The kind of models that a method merges, or the method itself where it is a single-task model."""
        kinds = self.frames["models"].set_index("method").kind
        return method if method in SINGLES else kinds[kinds.index == method].iloc[0]

    def label(self, method: str) -> str:
        """A method's name for people, with what it merges."""
        if localized := read_localized(method):
            return f"stitched {words(localized[0])} masks of {small_percent(localized[1])}"
        whole = " of whole models" if self.kind(method) == FINETUNED else ""
        return SINGLE_NAMES.get(method) or words(method) + whole


@dataclass(frozen=True)
class Model:
    """One way to make a model of a group's tasks, or the single-task models of one kind."""

    merged: Merged
    group: str
    method: str

    @property
    def rows(self) -> pd.DataFrame:
        """Its rows of `models`."""
        frame = self.merged.frames["models"]
        return frame[(frame.group == self.group) & (frame.method == self.method)]

    def cells(self, measure: str = "score") -> pd.Series:
        """A measure of each (seed, task)."""
        frame = self.merged.frames["scores"]
        rows = frame[(frame.group == self.group) & (frame.method == self.method)]
        return rows.set_index(["seed", "task"])[measure]

    def seeds(self, measure: str = "score") -> pd.Series:
        """The mean of a measure over tasks, for each seed; over the same tasks for all, so those that have it under every seed."""
        return self.cells(measure).unstack("task").dropna(axis=1).mean(axis=1)

    def megabytes(self) -> str:
        """To be kept beside the pretrained model; empty for single-task models that no merged model is made of."""
        if self.method not in SINGLES:
            return f"{(self.rows.bytes + self.rows.head_bytes).mean() / MEGA:.2f}"
        models = self.merged.frames["models"]
        models = models[models.group == self.group]
        if self.method != PRETRAINED:
            models = models[models.kind == self.method]
        kept = models.head_bytes + (0 if self.method == PRETRAINED else models.single_bytes)
        return f"{kept.mean() / MEGA:.2f}" if len(models) else ""


def collect(seeds: list[int], merge: MergeParams, combination: CombinationParams, least_gain: float) -> Merged:
    """Read the records of the cells of params.yaml; raises DataError that names each missing one with what makes it."""
    cells = grid(method=combination.methods, group=merge.groups, seed=seeds)
    records = Records("merge", "combination", "metrics/combination/{method}/{seed}/{group}.json", cells)
    require_files("make merge", records)
    rows = records.rows(lambda _, record: _rows(record))
    frames = {name: frame_of((row for kind, row in rows if kind == name), FRAMES[name]) for name in FRAMES}
    # what all methods of a group and seed have in common is taken from the first
    for name, once in (("scores", ["group", "method", "seed", "task"]), ("collisions", ["group", "seed"])):
        frames[name] = frames[name].drop_duplicates(once, ignore_index=True)
    # null where the fine-tuned model scores 0
    frames["scores"]["retained"] = pd.to_numeric(frames["scores"]["retained"])
    ends = scores_of_ends(frames["scores"].assign(variant=frames["scores"].method), ["group", "seed", "task"])
    frames["scores"] = add_gain(frames["scores"], ends, least_gain)
    return Merged(merge.groups, combination.methods if cells else [], seeds, frames, least_gain)


def _rows(record: Row) -> Iterable[tuple[str, Row]]:
    """(frame, row) of one record."""
    cell: Cell = {name: record[name] for name in ("group", "method", "seed")}
    scores = {(row["task"], row["variant"]): row for row in record["rows"]}
    single = {task: scores[task, record["kind"]]["score"] for task in record["tasks"]}
    for (task, variant), row in scores.items():
        if variant == MERGED:
            own = row["score"] / single[task] if single[task] else UNDEFINED
            yield "scores", {**row, **cell, "single": single[task], "own": own}
        elif variant in SINGLES:
            yield "scores", {**row, **cell, "method": variant}
    sizes = {name: record[name] for name in ("bytes", "head_bytes")}
    singles = sum(record.get("single_bytes", [record["bytes"]] * len(record["tasks"])))
    alpha = record.get("alpha", UNDEFINED)
    yield "models", {**cell, **sizes, "kind": record["kind"], "single_bytes": singles, "alpha": alpha}
    yield from (("dev", {**cell, **point}) for point in record.get("dev", []))
    if "collisions" in record:
        shared = {"tasks": len(record["tasks"]), "graftable": record["graftable"]}
        yield "collisions", {**cell, **shared, **record["collisions"]}


def report(merged: Merged, here: str) -> Report:
    """Tables and claims, or that there are none; `here` is what all were measured with."""
    size = f"{here}; {counts(group=len(merged.groups), seed=len(merged.seeds))}"
    if not merged.methods:
        return Report("Several tasks in one model", size, [], ["combination: off, so without any merged model"], [])
    claims = judge(read_statements(CLAIMS), MEASURES, merged, here)
    largest, models = merged.frames["dev"].alpha.max(), merged.frames["models"]
    names = ", ".join(merged.label(name) for name in models[models.alpha == largest].method.unique())
    edge = f"The largest alpha, {largest:g}, was chosen for {names}: a larger one may be better."
    return Report("Several tasks in one model", size, shown(tables(merged)), [edge] * bool(names), claims)


# --- Tables and numbers ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def tables(merged: Merged) -> list[Table]:
    """All models, the score of each on every task, and collisions."""
    return [model_table(merged), *(task_table(merged, group) for group in merged.groups), collision_table(merged)]


def _merged_only(of: Callable[[Model], pd.Series]) -> Callable[[Model], pd.Series]:
    """A column that single-task models have nothing in."""
    return lambda model: pd.Series(dtype=float) if model.method in SINGLES else of(model)


MODEL_COLUMNS = [
    share("score", Model.seeds, "score"),
    share("of own", _merged_only(partial(Model.seeds, measure="own")), "own"),
    share("of FT", partial(Model.seeds, measure="retained"), "retained"),
    share("gain", partial(Model.seeds, measure="gain"), "gain"),
    share("worst of FT", lambda model: model.cells("retained").groupby("seed").min()),
    Column("", _merged_only(lambda model: model.rows.bytes), str, "bytes"),
    Column(
        "alpha", lambda model: model.rows.alpha.dropna(), lambda alphas: ", ".join(map("{:g}".format, alphas)), "alpha"
    ),
    Column("MB", Model.megabytes, str),
]
MODEL_NOTES = [
    "in %: mean over the tasks that have a value under every seed, then mean (standard deviation) over seeds",
    "of own: score / that of the task's own model of the same kind, graft or fine-tuned; of FT: score / that of the fine-tuned one",
    "worst of FT: the lowest of these over tasks, for each seed",
    "alpha: weight of what is added to the pretrained model, chosen on dev, a value for each seed",
    "MB: what has to be kept beside the pretrained model, heads included; a graft takes 4 bytes for an index and 4 for a value",
]


def model_table(merged: Merged) -> Table:
    """All models of every group: over seeds, of means over tasks."""
    lines = []
    for group, tasks in merged.groups.items():
        lines += [Line(f"{group}: {', '.join(tasks)}"), *_lines(merged, group)]
    frame = merged.frames["scores"]
    gains = frame.gain[frame.method == FINETUNED]
    left_out = without_gain(int(gains.isna().sum()), len(gains), "fine-tuning", merged.least_gain)
    notes = [*MODEL_NOTES, f"gain: (score - pretrained) / (fine-tuned - pretrained){left_out}"]
    return Table("One model for several tasks", ["model"], MODEL_COLUMNS, lines, notes, "model")


def task_table(merged: Merged, group: str) -> Table:
    """The score of every model on each task."""
    tasks, frame = merged.groups[group], merged.frames["scores"]
    columns = [share(task, lambda model, task=task: model.cells().xs(task, level="task"), task) for task in tasks]
    sizes = frame[frame.group == group].groupby("task").n.min()
    notes = ["in %: mean (standard deviation over seeds)"]
    notes.append("test rows: " + ", ".join(f"{task} {int(sizes[task])}" for task in tasks))
    if ((frame.score - frame.accuracy).abs() > 1e-9).any():
        notes.append("the task's own metric, which isn't accuracy for all of them")
    return Table(f"Score on each task: {group}", ["model"], columns, _lines(merged, group), notes, "task")


def _lines(merged: Merged, group: str) -> list[Line]:
    """The single-task models, then the merged ones."""
    names = [*dict.fromkeys(SINGLES, "average").items(), *dict.fromkeys(merged.methods, "ours").items()]
    return [Line(merged.label(name), Model(merged, group, name), (group, name), kind) for name, kind in names]


def collision_table(merged: Merged) -> Table:
    """Parameters that several grafts of a group select; without lines where there are no grafts."""
    columns = [
        Column("union", lambda rows: float((rows["union"] / rows.graftable).mean()), small_percent, "union"),
        Column("colliding", lambda rows: float(rows.colliding.mean()), "{:,.0f}".format, "colliding"),
        share("share", lambda rows: rows.colliding / rows["union"], "share"),
        share("chance", lambda rows: rows.chance_colliding / rows.chance_union, "chance"),
        share("opposed", lambda rows: rows.opposed / rows.colliding, "opposed"),
    ]
    notes = [
        "union: selected by any graft, of the graftable parameters; colliding: by two or more, a number and the share of the union in %",
        "chance: the share for random masks of the same sizes; opposed: colliding ones that one graft moves up and another down, in %",
        "mean (standard deviation over seeds); a group is one number, so nothing is judged by it",
    ]
    lines = [Line(group, rows, group) for group, rows in merged.frames["collisions"].groupby("group", sort=False)]
    return Table("Parameters that several grafts select", ["group"], columns, lines, notes, "collisions")


def headline(merged: Merged) -> dict[str, Any]:
    """The numbers for `dvc metrics`: scores of single-task models, stitched grafts and averaged models of the first group."""
    names = [*SINGLES, *(name for name in (STITCHED, "average") if name in merged.methods)]
    return {
        group: {name: mean_of(Model(merged, group, name).seeds()).mean for name in names}
        for group in [*merged.groups][:1]
        if merged.methods
    }


def details(merged: Merged) -> dict[str, Any]:
    """Every number: tables by name, and each other method against the stitched mean."""
    if not merged.methods:
        return {}
    others = [name for name in merged.methods if name != STITCHED] if STITCHED in merged.methods else []
    gaps: dict[str, dict[str, Estimate]] = {group: {} for group in merged.groups}
    for group, name in product(merged.groups, others):
        gap = Model(merged, group, STITCHED).cells() - Model(merged, group, name).cells()
        gaps[group][name] = estimate(gap)
    return {**stored(tables(merged)), "stitched_minus": known(gaps)}


# --- What the claims measure -----------------------------------------------------------------------------------


def higher(merged: Merged, first: str, whole: bool) -> list[Finding]:
    """Score of one method less that of every other one that ran, of whole models or else of grafts, for each group."""
    others = [name for name in merged.methods if name != first and (merged.kind(name) == FINETUNED) == whole]
    others = others if first in merged.methods else []
    findings = []
    for group, second in product(merged.groups, others):
        ours, theirs = (Model(merged, group, name) for name in (first, second))
        fields = {"group": group, "first": merged.label(first), "second": merged.label(second)}
        fields |= {"ours": mean_of(ours.seeds()).mean, "theirs": mean_of(theirs.seeds()).mean}
        gap = ours.cells() - theirs.cells()
        findings.append(Finding(estimate(gap), fields, short_of(gap, points, "")))
    return findings


def kept(merged: Merged) -> list[Finding]:
    """Score / own graft's score, by the stitched mean or else the first method with grafts.

    The best one would be chosen on the test rows.
    """
    methods = [method for method in merged.methods if merged.kind(method) == GRAFTED]
    method = STITCHED if STITCHED in methods else methods[0] if methods else ""
    findings = []
    for group in merged.groups if method else []:
        shares = Model(merged, group, method).cells("own")
        fields = {"group": group, "method": merged.label(method)}
        findings.append(Finding(estimate(shares), fields, short_of(shares, percent, "")))
    return findings


def gained(merged: Merged) -> Finding:
    """Control of what is kept: the tasks' own grafts have gained something over the pretrained model, and over one label."""
    own, pretrained, constant = (
        pd.concat({group: Model(merged, group, method).cells(measure) for group in merged.groups}, names=["group"])
        for method, measure in ((GRAFTED, "score"), (PRETRAINED, "score"), (PRETRAINED, "constant"))
    )
    return above_baselines(own, pretrained, constant, "the tasks' own grafts")


MEASURES = {"higher": higher, "kept": kept, "gained": gained}
