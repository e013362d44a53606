"""The report of merged models: how good and how large they are, on each task, and how often grafts collide."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.merging.names import MEAN, MERGED, kind_of, read_localized
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import counted, percent, small_percent, words
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.report.stats import Estimate, mean_of, paired
from stages.lib.report.table import Column, Line, Table, numbers_of, share
from stages.merge.settings import CombinationParams, MergeParams

CLAIMS = Path(__file__).with_name("claims.yaml")
STITCHED = f"stitch_{MEAN}"
SINGLES = (PRETRAINED, FINETUNED, GRAFTED)
SINGLE_NAMES = {
    PRETRAINED: "pretrained, own heads",
    GRAFTED: "own graft of each task",
    FINETUNED: "own fine-tuned model of each task",
}
UNDEFINED = float("nan")
MEGA = 1e6
FRAMES = {
    "scores": ["group", "method", "seed", "task", "n", "score", "accuracy", "ece", "retained", "single", "own"],
    "models": ["group", "method", "seed", "alpha", "bytes", "head_bytes", "single_bytes"],
    "dev": ["group", "method", "seed", "alpha", "normalised"],
    "collisions": ["group", "seed", "tasks", "graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding"],
}  # fmt: skip
INTERVALS = (
    "Intervals are t-intervals for the mean of paired differences of single cells (task, seed), which takes cells as "
    "independent; the seeds of one task are not quite."
)


@dataclass(frozen=True)
class Merged:
    """groups: name -> tasks.  Tidy frames, measures as fractions 0..1:

    scores: one row for each (group, method, seed, task); the single-task models are methods too, called
    pretrained, finetuned and grafted.  `single` is the score of the task's own model of the same kind,
    `own` is score / single and `retained` score / fine-tuned score.
    models: one row for each merged model.  dev: its curve of alphas.  collisions: one row for each
    (group, seed) that has grafts.
    """

    groups: dict[str, list[str]]
    methods: list[str]
    seeds: list[int]
    frames: dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Model:
    """One way to make a model of a group's tasks, or the single-task models of one kind."""

    merged: Merged
    group: str
    method: str

    @property
    def label(self) -> str:
        """Its name for people, with what it merges."""
        return label(self.method)

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
        """The mean of a measure over tasks, for each seed."""
        return self.cells(measure).groupby("seed").mean()

    def alphas(self) -> pd.Series | None:
        """The alpha of each seed; None where nothing is scaled."""
        alphas = self.rows.alpha.dropna()
        return alphas if len(alphas) else None

    def megabytes(self) -> str:
        """To be kept beside the pretrained model; empty for single-task models that no merged model is made of."""
        frame = self.merged.frames["models"]
        if self.method == PRETRAINED:
            return f"{frame[frame.group == self.group].head_bytes.mean() / MEGA:.2f}"
        if self.method not in SINGLES:
            return f"{(self.rows.bytes + self.rows.head_bytes).mean() / MEGA:.2f}"
        made_of = frame[(frame.group == self.group) & (frame.method.map(kind_of) == self.method)]
        return f"{(made_of.single_bytes + made_of.head_bytes).mean() / MEGA:.2f}" if len(made_of) else ""


def label(method: str) -> str:
    """A method's name for people, with what it merges."""
    if method in SINGLE_NAMES:
        return SINGLE_NAMES[method]
    if localized := read_localized(method):
        return f"stitched {words(localized[0])} masks of {small_percent(localized[1])}"
    return words(method) + ("" if "graft" in method or "stitch" in method else " of whole models")


def collect(merge: MergeParams, combination: CombinationParams) -> Merged:
    """Read the records of the cells of params.yaml; raises DataError that names each missing one with what makes it."""
    cells = grid(method=combination.methods, group=merge.groups, seed=combination.seeds)
    records = Records("merge", "combination", "metrics/combination/{method}/{seed}/{group}.json", cells)
    require_files("make merge", records)
    seen: set[tuple[Any, ...]] = set()
    rows = records.rows(lambda _, record: _rows(record, seen))
    frames = {name: frame_of((row for kind, row in rows if kind == name), FRAMES[name]) for name in FRAMES}
    # null where the fine-tuned model scores 0
    frames["scores"]["retained"] = pd.to_numeric(frames["scores"]["retained"])
    return Merged(merge.groups, combination.methods if cells else [], combination.seeds, frames)


def _rows(record: Row, seen: set[tuple[Any, ...]]) -> Iterable[tuple[str, Row]]:
    """(frame, row) of one record; what all methods of a group and seed have in common is taken from the first."""
    cell: Cell = {name: record[name] for name in ("group", "method", "seed")}
    place = (cell["group"], cell["seed"])
    scores = {(row["task"], row["variant"]): row for row in record["rows"]}
    single = {task: scores[task, kind_of(cell["method"])]["score"] for task in record["tasks"]}
    for (task, variant), row in scores.items():
        if variant == MERGED:
            own = row["score"] / single[task] if single[task] else UNDEFINED
            yield "scores", {**row, **cell, "single": single[task], "own": own}
        elif variant in SINGLES and ("scores", *place) not in seen:
            yield "scores", {**row, **cell, "method": variant}
    seen.add(("scores", *place))
    sizes = {name: record[name] for name in ("bytes", "head_bytes")}
    singles = sum(record.get("single_bytes", [record["bytes"]] * len(record["tasks"])))
    yield "models", {**cell, **sizes, "single_bytes": singles, "alpha": record.get("alpha", UNDEFINED)}
    yield from (("dev", {**cell, **point}) for point in record.get("dev", []))
    if "collisions" in record and ("collisions", *place) not in seen:
        seen.add(("collisions", *place))
        shared = {"tasks": len(record["tasks"]), "graftable": record["graftable"]}
        yield "collisions", {**cell, **shared, **record["collisions"]}


def report(merged: Merged) -> Report:
    """Tables and claims, or that there are none."""
    size = f"{counted(len(merged.groups), 'group')} of tasks, {counted(len(merged.seeds), 'seed')}"
    if not merged.methods:
        return Report("Several tasks in one model", size, [], ["combination: off, so without any merged model"], [])
    tables = [model_table(merged), *(task_table(merged, group) for group in merged.groups), *collision_tables(merged)]
    texts = [table.text() for table in tables]
    return Report("Several tasks in one model", size, texts, [INTERVALS, *_at_the_edge(merged)], claims(merged))


def _at_the_edge(merged: Merged) -> list[str]:
    """Methods for which dev chose the largest alpha there was."""
    largest = merged.frames["dev"].alpha.max()
    models = merged.frames["models"]
    names = [label(name) for name in models[models.alpha == largest].method.unique()]
    if not names:
        return []
    return [f"The largest alpha, {largest:g}, was chosen for {', '.join(names)}: a larger one may be better."]


# --- Tables ----------------------------------------------------------------------------------------------------


def _over_seeds(title: str, measure: str, key: str) -> Column:
    return share(title, lambda model: model.seeds(measure), key)


MODEL_COLUMNS = [
    Column("n", lambda model: str(len(model.cells())), str),
    _over_seeds("score", "score", "score"),
    Column(
        "of own",
        lambda model: None if model.method in SINGLES else model.seeds("own"),
        lambda values: "" if values is None else mean_of(values).text(),
        "own",
    ),
    _over_seeds("of FT", "retained", "retained"),
    share("worst of FT", lambda model: model.cells("retained").groupby("seed").min()),
    Column("", lambda model: None if model.method in SINGLES else model.rows.bytes, str, "bytes"),
    Column(
        "alpha",
        lambda model: model.alphas(),
        lambda alphas: "" if alphas is None else ", ".join(f"{alpha:g}" for alpha in alphas),
        "alpha",
    ),
    Column("MB", lambda model: model.megabytes(), str),
]
MODEL_NOTES = [
    "in %: mean over tasks, then mean (standard deviation) over seeds; n: tasks times seeds",
    "of own: score / that of the task's own model of the same kind, graft or fine-tuned; of FT: score / that of the fine-tuned one",
    "worst of FT: the lowest of these over tasks, for each seed",
    "alpha: weight of what is added to the pretrained model, chosen on dev, a value for each seed",
    "MB: what has to be kept beside the pretrained model, heads included; a graft takes 4 bytes for an index and 4 for a value",
]


def model_table(merged: Merged) -> Table:
    """All models of every group: over seeds, of means over tasks."""
    lines = []
    for group, tasks in merged.groups.items():
        lines += [Line(f"{group}: {', '.join(tasks)}"), *_lines(merged, group, ("average", "ours"))]
    stored = ("score", "own", "retained", "bytes", "alpha")
    return Table("One model for several tasks", ["model"], MODEL_COLUMNS, lines, MODEL_NOTES, stored=stored)


def task_table(merged: Merged, group: str) -> Table:
    """The score of every model on each task."""
    columns = [
        share(task, lambda model, task=task: model.cells().xs(task, level="task"), task)
        for task in merged.groups[group]
    ]
    frame = merged.frames["scores"]
    sizes = frame[frame.group == group].groupby("task").n.min()
    notes = ["in %: mean (standard deviation over seeds)"]
    notes.append("test rows: " + ", ".join(f"{task} {int(sizes[task])}" for task in merged.groups[group]))
    if ((frame.score - frame.accuracy).abs() > 1e-9).any():
        notes.append("the task's own metric, which isn't accuracy for all of them")
    lines = _lines(merged, group, ("average", "ours"))
    return Table(f"Score on each task: {group}", ["model"], columns, lines, notes, stored=merged.groups[group])


def _lines(merged: Merged, group: str, kinds: tuple[str, str]) -> list[Line]:
    """The single-task models, then the merged ones; stored in the order of SINGLES."""
    names = [(name, kinds[0]) for name in (PRETRAINED, GRAFTED, FINETUNED)] + [
        (name, kinds[1]) for name in merged.methods
    ]
    places = {name: place for place, name in enumerate((*SINGLES, *merged.methods))}
    return [
        Line(label(name), Model(merged, group, name), (group, name), kind, place=places[name]) for name, kind in names
    ]


def _of(part: str, whole: str, title: str) -> Column:
    return Column(title, lambda rows: rows[part] / rows[whole], _spread)


def _spread(shares: pd.Series) -> str:
    value = mean_of(shares)
    return value.text() if value.n else percent(None)


COLLISION_COLUMNS = [
    Column("n", len, str),
    Column("union", lambda rows: (rows["union"] / rows.graftable).mean(), small_percent),
    Column("colliding", lambda rows: rows.colliding.mean(), "{:,.0f}".format),
    _of("colliding", "union", "share"),
    _of("chance_colliding", "chance_union", "chance"),
    _of("opposed", "colliding", "opposed"),
    *(
        Column("", lambda rows, name=name: float(rows[name].mean()), str, name)
        for name in ("graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding")
    ),
]
COLLISION_NOTES = [
    "union: selected by any graft, of the graftable parameters; colliding: by two or more, a number and the share of the union in %",
    "chance: the share for random masks of the same sizes; opposed: colliding ones that one graft moves up and another down, in %",
    "n: seeds; mean (standard deviation over seeds)",
]


def collision_tables(merged: Merged) -> list[Table]:
    """Collisions: parameters that several grafts of a group select; none where there are no grafts."""
    parts = merged.frames["collisions"].groupby("group", sort=False)
    lines = [Line(group, rows, group) for group, rows in parts]
    stored = [column.key for column in COLLISION_COLUMNS if column.key]
    title = "Parameters that several grafts select"
    return [Table(title, ["group"], COLLISION_COLUMNS, lines, COLLISION_NOTES, stored=stored)] if lines else []


# --- Numbers and claims ----------------------------------------------------------------------------------------


def numbers(merged: Merged) -> dict[str, Any]:
    """The numbers for `dvc metrics`; empty if combination is off.

    model       group -> method -> score, own, retained, alpha, bytes -> n, mean, sd over seeds, of means over tasks;
                the single-task models are methods too
    task        group -> task -> method -> n, mean, sd of the score over seeds
    collisions  group -> union, colliding, opposed, chance_union, chance_colliding, graftable -> mean over seeds
    difference  group -> method, against the stitched mean -> n, mean, sd, low, high, positive over cells
    """
    if not merged.methods:
        return {}
    by_task = {}
    for group, tasks in merged.groups.items():
        methods = task_table(merged, group).numbers()[group]
        by_task[group] = {task: {name: methods[name][task] for name in methods} for task in tasks}
    return {
        "model": model_table(merged).numbers(),
        "task": by_task,
        "collisions": {name: part for table in collision_tables(merged) for name, part in table.numbers().items()},
        "difference": {group: part for group in merged.groups if (part := _differences(merged, group))},
    }


def _differences(merged: Merged, group: str) -> dict[str, Any]:
    if STITCHED not in merged.methods:
        return {}
    others = [name for name in merged.methods if name != STITCHED]
    return {name: numbers_of(_better(Group(merged, group), STITCHED, name)) for name in others}


@dataclass(frozen=True)
class Group:
    """The tasks of one group, as the claims are made for it."""

    merged: Merged
    name: str

    def cells(self, method: str, measure: str = "score") -> pd.Series:
        """A measure of each (seed, task)."""
        return Model(self.merged, self.name, method).cells(measure)


def claims(merged: Merged) -> list:
    """Those of claims.yaml for each group."""
    statements = read_statements(CLAIMS)
    return [claim for name in merged.groups for claim in judge(statements, MEASURES, Group(merged, name))]


def _better(group: Group, better: str, worse: str) -> Estimate:
    return paired(group.cells(better), group.cells(worse))


def higher(group: Group, first: str, second: str) -> list[Finding]:
    """Score of one method less that of another, over cells; nothing where one has not run."""
    if not {first, second} <= {*group.merged.methods}:
        return []
    means = (group.cells(first) - group.cells(second)).groupby("task").mean()
    losers = [task for task in group.merged.groups[group.name] if means[task] < 0]
    fields = {"group": group.name, "first": label(first), "second": label(second)}
    return [Finding(_better(group, first, second), fields, losers)]


def kept(group: Group) -> list[Finding]:
    """Score / own graft's score, by the stitched mean or else the first method with grafts.

    The best one would be chosen on the test rows.
    """
    methods = [method for method in group.merged.methods if kind_of(method) == GRAFTED]
    if not methods:
        return []
    method = STITCHED if STITCHED in methods else methods[0]
    shares = group.cells(method, "own")
    value, by_task = paired(shares, shares * 0), shares.groupby("task", sort=False).mean()
    interval = "" if value.low is None else f", 95 % interval {percent(value.low)} to {percent(value.high)}"
    fields = {"group": group.name, "method": label(method), "share": value.mean, "interval": interval, "n": value.n}
    return [Finding(value, fields, lambda limit: [task for task, kept in by_task.items() if kept < limit])]


def collisions(group: Group) -> list[Finding]:
    """Share of the union that several grafts select, less that of random masks, over seeds."""
    frame = group.merged.frames["collisions"]
    rows = frame[frame.group == group.name].set_index("seed")
    if rows.empty:
        return []
    shares, chance = rows.colliding / rows["union"], rows.chance_colliding / rows.chance_union
    value = paired(shares, chance)
    fields = {"group": group.name, "share": shares.mean(), "chance": chance.mean(), "mean": value.mean, "n": value.n}
    return [Finding(value, fields)]


MEASURES = {"higher": higher, "kept": kept, "collisions": collisions}
