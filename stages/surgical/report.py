"""What the records of surgical fine-tuning say together: tidy frames, the tables made of them, and what its claims measure.

metrics/surgical.json has nested dicts of n, mean and sd, nothing else:

    fim         between_tasks, between_seeds, between_heads; way -> kendall, spearman (with the way that chooses)
    surgery     selection -> score, accuracy, trained, runs, flagged; minus_all, minus_random with low, high, positive
    robustness  task -> step -> spearman, kendall, moved, dev_accuracy
    bridge      score_graft, score_movement, graft_movement; top -> k -> share, chance

Measures are fractions 0..1 and correlations -1..1; cells are (task, seed), the draws of a random
selection count as one cell.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.errors import DataError
from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.composition import composition
from stages.lib.metrics.ranks import kendall, spearman
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import bounds, counted, counts, off_line, percent, points
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.report.stats import Estimate, Mean, mean_of, paired
from stages.lib.report.table import Column, Line, Table, by, share, shown, stored
from stages.surgical.selections import Selection, order
from stages.surgical.settings import FimParams, RobustnessParams, SurgeryParams, SurgicalParams

HERE = Path(__file__).parent
CELL = ["task", "seed"]
LAYER = [*CELL, "layer"]
FIM = [*CELL, "target", "examples", "used", "head", "aggregation", "layer", "score"]
SURGERY = [
    "selection", "kind", "size", *CELL, "draw", "layers", "trained", "model_parameters", "n", "accuracy",
    "score", "majority", "loss", "peak_learning_rate",
]  # fmt: skip
ROBUSTNESS = [*CELL, "step", "layer", "score", "moved", "start", "dev_accuracy"]
CHECKPOINTS = [*CELL, "step", "spearman", "kendall", "dev_accuracy", "moved"]
REGIONS = [*LAYER, "share", "chance"]
# accuracies are quotients, so that a difference of exactly the margin may come out a little smaller
ROUNDING = 1e-9
# of the data behind figures, what may be tiny is not rounded
EXACT = ("score", "share", "chance", "dev_accuracy", "peak_learning_rate")


@dataclass(frozen=True)
class Surgical:
    """Frames with one row for each layer (fim, robustness, regions) or each fine-tuning (runs).

    `regions` is where the learned masks of the main pipeline lie: the share of the mask in a layer, and
    the share a random one would have.  `size` is None for the selections `all` and `none`.
    """

    surgery: SurgeryParams
    limits: SurgicalParams
    fim: pd.DataFrame
    runs: pd.DataFrame
    robustness: pd.DataFrame
    regions: pd.DataFrame

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.fim.layer.max()) + 1

    def chosen(self, **other: Any) -> pd.Series:
        """(task, seed, layer) -> the score that chose the layers, its mean over heads, or an `other` one.

        Of a cell without so many examples it is the score of the most that were asked for below that, as in surgery.
        """
        wanted = {name: getattr(self.surgery.score, name) for name in ("target", "aggregation", "examples")} | other
        frame = self.fim[self.fim.examples <= wanted.pop("examples")]
        for name, value in wanted.items():
            frame = frame[frame[name] == value]
        frame = frame[frame.examples == frame.groupby(CELL)["examples"].transform("max")]
        return frame.groupby(LAYER, sort=False)["score"].mean()

    @cached_property
    def flagged(self) -> pd.Series:
        """Which fine-tunings are hardly better than always predicting the most frequent label."""
        return self.runs.accuracy - self.runs.majority < self.limits.margin - ROUNDING

    @cached_property
    def learners(self) -> set[tuple] | None:
        """Cells (task, seed) where training all layers is not flagged; None where that was not done."""
        whole = self.runs[self.runs.selection == "all"]
        cells = [{*zip(rows.task, rows.seed, strict=True)} for rows in (whole, whole[self.flagged[whole.index]])]
        return cells[0] - cells[1] if len(whole) else None

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """Agreement of each ranking during training with that of step 0, and movement relative to the pretrained norm."""
        rows = []
        for (task, seed), cell in self.robustness.groupby(CELL, sort=False):
            start = cell[cell.step == 0].score.tolist()
            for step, now in cell.groupby("step"):
                row = {"task": task, "seed": seed, "step": int(step), "dev_accuracy": now.dev_accuracy.iloc[0]}
                ranks = {measure.__name__: measure(start, now.score.tolist()) for measure in (spearman, kendall)}
                rows.append({**row, **ranks, "moved": float(((now.moved**2).sum() / (now.start**2).sum()) ** 0.5)})
        return frame_of(rows, CHECKPOINTS).astype({"spearman": float, "kendall": float})

    @property
    def plots(self) -> dict[str, pd.DataFrame]:
        """The data behind the figures."""
        layers = [" ".join(map(str, layers)) for layers in self.runs.layers]
        runs = self.runs.assign(layers=layers, flagged=self.flagged)
        return {"fim": self.fim, "surgery": runs, "robustness": self.checkpoints, "regions": self.regions}


def collect(
    seeds: list[int], fim: FimParams, surgery: SurgeryParams, robustness: RobustnessParams, limits: SurgicalParams
) -> Surgical:
    """Read the cells that the settings name, and the learned masks of the scored ones.

    Raises DataError for missing records, and where two selections of different layers were trained alike.
    """
    scored, needs = grid(seed=seeds, task=fim.tasks), ("stage", "rows")
    fims = Records("surgical", "fim", "metrics/fim/{seed}/{task}.json", scored, needs=needs)
    operated = grid(selection=surgery.selections, seed=seeds, task=surgery.tasks)
    operations = Records("surgical", "surgery", "metrics/surgery/{selection}/{seed}/{task}.json", operated, needs=needs)
    trained = grid(seed=seeds, task=robustness.tasks)
    steps = Records("surgical", "robustness", "metrics/robustness/{seed}/{task}.json", trained, needs=needs)
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", scored, "{task}-{seed}")
    require_files("make surgical", fims, operations, steps, masks)
    runs = operations.rows(_runs)
    require_distinct(runs)
    return Surgical(
        surgery, limits,
        frame_of(fims.rows(_layers), FIM),
        frame_of(runs, SURGERY),
        frame_of(steps.rows(_layers), ROBUSTNESS),
        frame_of((row for cell in scored for row in _regions(cell, masks.file(cell))), REGIONS),
    )  # fmt: skip


def _layers(cell: Cell, record: Row) -> Iterator[Row]:
    """A row for each layer, of which every list of a part has an item."""
    for part in record["rows"]:
        lists = {name: part[name] for name in ("scores", "moved", "start") if name in part}
        for layer, values in enumerate(zip(*lists.values(), strict=True)):
            yield {**part, **cell, "layer": layer, "score": values[0], **dict(zip(lists, values, strict=True))}


def _runs(cell: Cell, record: Row) -> list[Row]:
    selection = Selection.parse(cell["selection"])
    more = {**cell, "kind": selection.kind, "size": selection.size, "model_parameters": record["model_parameters"]}
    return [{**row, **more} for row in record["rows"]]


def _regions(cell: Cell, path: Path) -> list[Row]:
    mask = read_mask(path).mask
    counts = {name: len(indices) for name, indices in mask.indices.items()}
    places = pd.DataFrame(composition(counts, mask.region.shapes)).dropna(subset="layer")
    return [
        {**cell, "layer": int(layer), **{name: float(rows[name].sum()) for name in ("share", "chance")}}
        for layer, rows in places.groupby("layer")
    ]


def require_distinct(rows: Iterable[Row]) -> None:
    """Raise DataError if different layers of one cell have the same losses at every step and on the test set.

    Then the same parameters were trained, whatever the selections say.
    """
    seen: dict[tuple, list[int]] = {}
    for row in (row for row in rows if row["curve"]):
        losses = tuple(point["train_loss"] for point in row["curve"])
        first = seen.setdefault((row["task"], row["seed"], losses, row["loss"]), row["layers"])
        if first != row["layers"]:
            one, other = map(layer_text, (first, row["layers"]))
            raise DataError(
                f"surgery: training layers {one} and training layers {other} of {row['task']}-{row['seed']} gave the same "
                "loss at every step, so the same parameters were trained; the selection of layers is broken"
            )


def layer_text(layers: list[int]) -> str:
    """Layers for people, counted from 1: "2, 11"."""
    return ", ".join(str(layer + 1) for layer in layers) or "none"


# --- Agreement of rankings -----------------------------------------------------------------------------------------


def by_cell(scores: pd.Series) -> dict[tuple[str, Any], list[float]]:
    """(task, seed) -> scores by layer, from a series indexed by task, seed, layer."""
    return {key: group.sort_index(level="layer").tolist() for key, group in scores.groupby(CELL, sort=False)}


def agreement(first: pd.Series, second: pd.Series, measure: Callable[..., float | None] = spearman) -> Mean:
    """Mean agreement over the cells that both have."""
    left, right = by_cell(first), by_cell(second)
    return mean_of([measure(left[cell], right[cell]) for cell in left if cell in right])


def between(data: Surgical, same: str, different: str) -> Mean:
    """Mean Spearman correlation of two cells with the same task and different seeds, or the other way round."""
    cells, same, different = by_cell(data.chosen()), CELL.index(same), CELL.index(different)
    pairs = [(a, b) for a, b in combinations(cells, 2) if a[same] == b[same] and a[different] != b[different]]
    return mean_of([spearman(cells[one], cells[other]) for one, other in pairs])


def alike(data: Surgical) -> dict[str, Mean]:
    """How well scores of two tasks, two seeds and two random heads agree; none of heads where there is one."""
    heads = [data.chosen(head=head) for head in sorted(data.fim["head"].unique())]
    values = [agreement(*pair) for pair in combinations(heads, 2)]
    of_heads = mean_of([value.mean for value in values if value.n])
    tasks, seeds = between(data, "seed", "task"), between(data, "task", "seed")
    return {"between_tasks": tasks, "between_seeds": seeds, "between_heads": of_heads}


def bridges(data: Surgical, task: str | None = None) -> dict[str, Mean]:
    """Agreement by layer of the scores, the learned masks (over chance) and the movement in training; of one task or all."""
    moved = data.robustness[data.robustness.step == data.robustness.groupby("task")["step"].transform("max")]
    series = {
        "score": data.chosen(),
        "graft": data.regions.assign(lift=data.regions.share / data.regions.chance).set_index(LAYER)["lift"],
        "movement": moved.assign(share=moved.moved / moved.start).set_index(LAYER)["share"],
    }
    if task is not None:
        series = {name: values[values.index.get_level_values("task") == task] for name, values in series.items()}
    return {f"{one}_{other}": agreement(series[one], series[other]) for one, other in combinations(series, 2)}


def caught(data: Surgical, size: int) -> pd.DataFrame:
    """Rows task, seed, share, chance: of the learned mask inside the `size` layers with the highest scores."""
    rows = []
    for (task, seed), scores in by_cell(data.chosen()).items():
        region = data.regions[(data.regions.task == task) & (data.regions.seed == seed)]
        inside = region[region.layer.isin(order(scores)[:size])]
        if len(region):
            rows.append({"task": task, "seed": seed, "share": inside.share.sum(), "chance": inside.chance.sum()})
    return frame_of(rows, [*CELL, "share", "chance"])


def sizes(data: Surgical, *kinds: str) -> list[int]:
    """Numbers of layers for which every one of these kinds of selections was made."""
    made = [{*data.runs[data.runs.kind == kind]["size"].dropna()} for kind in kinds]
    return sorted(map(int, set.intersection(*made)))


# --- Tables --------------------------------------------------------------------------------------------------------


BRIDGES = ("score_graft", "score_movement", "graft_movement")
CELLS = "n: cells, one for each task and seed; mean (standard deviation over cells)"


def plain(value: Mean | pd.Series) -> str:
    """A correlation with its deviation: "0.94 (0.05)"."""
    value = value if isinstance(value, Mean) else mean_of(value)
    if not value.n:
        return ""
    return f"{value.mean:.2f}" + ("" if value.sd is None else f" ({value.sd:.2f})")


def gap(value: Estimate) -> str:
    """A difference with its interval, empty without cells."""
    if not value.n:
        return ""
    interval = "" if value.low is None else f" ({points(value.low)} to {points(value.high)})"
    return f"{points(value.mean)}{interval}"


def tables(data: Surgical) -> list[Table]:
    """In the order in which they are read, also those of stages that are off."""
    return [make(data) for make in (_scores, _ways, _selections, _checkpoints, _bridge)]


def _scores(data: Surgical) -> Table:
    """Layers in the order of their scores, task by task."""

    def mean(scores: pd.Series) -> pd.Series:
        return scores.groupby("layer").mean()

    columns = [
        Column("n", lambda scores: scores.index.get_level_values("seed").nunique(), str),
        Column("layers, highest score first", lambda scores: order(mean(scores).tolist()), lambda layers: layer_text(layers).replace(",", "")),
        Column("share of the first (%)", lambda scores: mean(scores).max() / mean(scores).sum(), percent),
    ]  # fmt: skip
    pairs = ("two tasks of a seed", "two seeds of a task", "two random heads of a cell")
    notes = [
        f"Spearman correlation of the scores of {text}: {plain(value)} (n = {value.n} pairs)"
        for text, value in zip(pairs, alike(data).values(), strict=True)
        if value.n
    ]
    score = data.surgery.score
    title = f"FIM score of layers: {score.target}, {score.aggregation}, {score.examples} examples"
    lines = [Line(task, scores) for task, scores in data.chosen().groupby("task", sort=False)]
    return Table(title, ["task"], columns, lines, notes)


def _ways(data: Surgical) -> Table:
    """How far other ways to score give the same ranking."""
    chosen = data.chosen()
    columns = [
        Column("n", lambda scores: agreement(scores, chosen, kendall).n, str),
        Column("Kendall tau-b", lambda scores: agreement(scores, chosen, kendall), plain, "kendall"),
        Column("Spearman", lambda scores: agreement(scores, chosen), plain, "spearman"),
    ]
    ways = data.fim[["target", "aggregation", "examples"]].drop_duplicates().to_dict("records")
    lines = [
        Line((f"{way['target']}, {way['aggregation']}", str(way["examples"])), data.chosen(**way), "-".join(map(str, way.values())))
        for way in ways
    ]  # fmt: skip
    notes = [CELLS, "1: the same ranking; the way that chooses the layers of surgery is among the rows"]
    title = "Ways to score: agreement with the one that chooses"
    return Table(title, ["target, aggregation", "examples"], columns, lines, notes, "fim", ("kendall", "spearman"))


def score_of(runs: pd.DataFrame, measure: str = "score") -> pd.Series:
    """(task, seed) -> score or accuracy, the mean over draws."""
    return runs.groupby(CELL, sort=False)[measure].mean()


def _selections(data: Surgical) -> Table:
    """Scores of every selection, against all layers and against random ones."""

    def less(title: str, key: str, other: Callable[[pd.DataFrame], str]) -> Column:
        return Column(title, lambda runs: against(data, runs.selection.iloc[0], other(runs)), gap, key)

    def of_task(task: str) -> Column:
        return share(task, lambda runs: score_of(runs[runs.task == task]))

    flagged, margin = data.flagged, points(data.limits.margin).lstrip("+")
    columns = [
        Column("trained (%)", lambda runs: float((runs.trained / runs.model_parameters).mean()), percent, "trained"),
        Column("n", lambda runs: len(score_of(runs)), str), *map(of_task, dict.fromkeys(data.runs.task)),
        share("mean", score_of, "score"), share("", lambda runs: score_of(runs, "accuracy"), "accuracy"),
        less("less all", "minus_all", lambda runs: "all"),
        less("less random", "minus_random", lambda runs: f"random_{runs.selection.iloc[0].rpartition('_')[2]}"),
        Column("flagged", lambda runs: f"{flagged[runs.index].sum()} of {len(runs)}", str),
        Column("", lambda runs: int(flagged[runs.index].sum()), str, "flagged"), Column("", len, str, "runs"),
    ]  # fmt: skip
    counts = [
        f"{flagged[runs.index].sum()} of {len(runs)} of {task} ({percent(runs.majority.mean())} %)"
        for task, runs in data.runs.groupby("task", sort=False)
    ]
    notes = [
        f"score in %; {CELLS}; the draws of a random selection count as one cell, their mean",
        "trained: share of the model's parameters, a new head included",
        "differences in percentage points, paired by cell, with a t-interval that takes cells as independent",
        f"flagged: runs less than {margin} points above the share of the most frequent label (in brackets), or below it: "
        f"{', '.join(counts)}; plots/surgical/surgery.csv names them",
    ]
    names = ("score", "accuracy", "runs", "flagged", "trained", "minus_all", "minus_random")
    lines = by(data.runs, "selection")
    return Table("Fine-tuning of selected layers", ["selection"], columns, lines, notes, "surgery", names)


def against(data: Surgical, selection: str, other: str, cells: set[tuple] | None = None) -> Estimate:
    """Score of a selection less that of another, paired by cell, or by these; of no cells if one wasn't made."""
    runs = data.runs
    if cells is not None:
        runs = runs[[cell in cells for cell in zip(runs.task, runs.seed, strict=True)]]
    first, second = (score_of(runs[runs.selection == name]) for name in (selection, other))
    return paired(first, second) if selection != other else paired(first.iloc[:0], first.iloc[:0])


def _checkpoints(data: Surgical) -> Table:
    """Agreement of the ranking with that before training, and how much training did."""
    columns = [
        Column("n", len, str), Column("Spearman", "spearman", plain, "spearman"),
        Column("Kendall tau-b", "kendall", plain, "kendall"), share("moved (%)", "moved"),
        share("dev accuracy (%)", "dev_accuracy"),
    ]  # fmt: skip
    lines = [
        Line((task, str(step)), now, (task, str(step)))
        for (task, step), now in data.checkpoints.groupby(["task", "step"], sort=False)
    ]
    notes = [
        "all layers are trained; agreement of the ranking with that of step 0; mean (standard deviation over seeds)",
        "moved: norm of the movement of all layers, of their pretrained norm",
    ]
    names = ("spearman", "kendall", "moved", "dev_accuracy")
    return Table("The ranking during fine-tuning", ["task", "step"], columns, lines, notes, "robustness", names)


def _bridge(data: Surgical) -> Table:
    """Do the scores point to where the learned grafts lie?"""

    def inside(size: int) -> Column:
        frame = caught(data, size)
        means = {
            task: [percent(rows[name].mean()) for name in ("share", "chance")] for task, rows in frame.groupby("task")
        }
        return Column(
            f"graft in top {size} (%)",
            lambda part: means.get(part["task"]),
            lambda pair: "{} ({})".format(*pair) if pair else "",
        )

    columns = [
        Column("n", lambda part: part["score_graft"].n, str),
        *(Column(name.replace("_", ", "), lambda part, name=name: part[name], plain) for name in BRIDGES),
        *map(inside, sizes(data, "top") or [1]),
    ]
    notes = [
        "Spearman correlations over layers; graft: share of the learned mask of the main pipeline, over chance",
        "graft in top k: share of the learned mask in the k layers with the highest scores, in brackets a random mask's",
    ]
    lines = [Line(task, {"task": task, **bridges(data, task)}) for task in dict.fromkeys(data.regions.task)]
    return Table("Where the scores point and where grafts lie", ["task"], columns, lines, notes)


# --- What the claims measure ---------------------------------------------------------------------------------------


def top(size: int) -> str:
    """The selection of so many layers, in words."""
    return "the layer with the highest score" if size == 1 else f"the {size} layers with the highest scores"


def kept(data: Surgical) -> Iterable[Finding]:
    """Share of the score of all layers that the best few keep, for each number of them."""
    whole = score_of(data.runs[data.runs.selection == "all"])
    for size in sizes(data, "top"):
        # a share of a score that is 0 or below, as a correlation may be, says nothing
        shares = (score_of(data.runs[data.runs.selection == f"top_{size}"]) / whole[whole > 0]).dropna()
        if len(shares):
            difference = against(data, f"top_{size}", "all")
            fields = {"layers": top(size), "gap": difference.words()}
            fields["learners"] = _among_learners(data, f"top_{size}", "all")
            yield Finding(mean_of(shares), fields, lambda limit, shares=shares: [
                f"{task}-{seed} ({percent(share)} %)" for (task, seed), share in shares.items() if share < limit
            ])  # fmt: skip


def better(data: Surgical, rival: str) -> Iterable[Finding]:
    """Score of the layers with the highest scores less that of a rival selection of as many."""
    for size in sizes(data, "top", rival):
        pair = f"top_{size}", f"{rival}_{size}"
        fields = {"layers": top(size), "rival": pair[1], "learners": _among_learners(data, *pair)}
        yield Finding(against(data, *pair), fields)


def _among_learners(data: Surgical, selection: str, other: str) -> str:
    """The same difference without the cells where training all layers is flagged; empty if there are none."""
    learners = data.learners
    if learners is None or len(learners) == len(data.runs[CELL].drop_duplicates()):
        return ""
    return f"; in cells where all layers learn: {against(data, selection, other, learners).words()}"


def steady(data: Surgical) -> Iterable[Finding]:
    """The lowest agreement with the ranking before fine-tuning that does change the model."""
    frame = data.checkpoints
    frame = frame[frame.step > 0].dropna(subset="spearman")
    if len(frame):
        last = frame[frame.step == frame.groupby("task")["step"].transform("max")]
        fields = {"lowest": frame.spearman.min(), "last": plain(last.spearman), "cells": counted(len(last), "cell")}
        yield Finding(frame.spearman.min(), fields | {"moved": mean_of(last.moved).text()}, lambda limit: [
            f"{row.task}-{row.seed} at step {row.step} ({row.spearman:.2f})"
            for row in frame.itertuples() if row.spearman < limit
        ])  # fmt: skip


def of_tasks(data: Surgical) -> Iterable[Finding]:
    """Whether scores of tasks agree less than those of seeds of a task."""
    tasks, seeds = between(data, "seed", "task"), between(data, "task", "seed")
    if tasks.n and seeds.n:
        fields = {"tasks": plain(tasks), "pairs": tasks.n, "seeds": plain(seeds), "seed_pairs": seeds.n}
        yield Finding(tasks.mean < seeds.mean, fields)


def inside(data: Surgical) -> Iterable[Finding]:
    """Share of the learned graft in the layers with the highest scores less that of a random one."""
    for size in sizes(data, "top"):
        rows = caught(data, size).set_index(CELL)
        if len(rows):
            fields = {"layers": top(size), "share": rows.share.mean(), "chance": rows.chance.mean()}
            yield Finding(paired(rows.share, rows.chance), fields)


MEASURES = {"kept": kept, "better": better, "steady": steady, "of_tasks": of_tasks, "inside": inside}


# --- All of it -----------------------------------------------------------------------------------------------------


def tested(runs: pd.DataFrame) -> str:
    """Test rows, from the fewest to the most."""
    return bounds([str(runs.n.min()), str(runs.n.max())])


def report(data: Surgical) -> Report:
    """Tables, what is off, and which claims show."""
    size = counts(task=data.fim.task.nunique(), seed=data.fim.seed.nunique(), layer=data.layers)
    facts = off_line([name for name, frame in (("surgery", data.runs), ("robustness", data.robustness)) if frame.empty])
    if len(data.runs):
        margin = points(data.limits.margin).lstrip("+")
        facts.insert(0, f"{data.flagged.sum()} of {len(data.runs)} fine-tunings are less than {margin} points better than the "
            f"most frequent label (surgical.margin), n = {tested(data.runs)} test rows")  # fmt: skip
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, data, data.limits)
    return Report("Surgical fine-tuning", size, shown(tables(data)), facts, claims)


def numbers(data: Surgical) -> dict[str, Any]:
    """metrics/surgical.json; see the head of this module."""
    parts = stored(tables(data))
    parts["fim"] = {name: value.numbers() for name, value in alike(data).items()} | parts["fim"]
    for row in parts["surgery"].values():
        for name in ("minus_all", "minus_random"):
            row |= {} if row[name]["n"] else {name: None}
    parts["bridge"] = {name: value.numbers() for name, value in bridges(data).items()}
    for size in sizes(data, "top"):
        if len(rows := caught(data, size)):
            values = {name: mean_of(rows[name]).numbers() for name in ("share", "chance")}
            parts["bridge"].setdefault("top", {})[str(size)] = values
    return parts
