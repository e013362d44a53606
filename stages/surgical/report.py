"""The records of surgical fine-tuning together: the tables made of them, and the measurements for its claims.

Measures are fractions 0..1 and correlations -1..1; cells are (task, seed), the draws of a random
selection count as one cell.  metrics/surgical.details.json has nested dicts:

    fim         between_tasks, between_seeds, between_heads; way -> kendall, spearman (with the way that chooses)
    surgery     selection -> score, accuracy, trained, runs, flagged; minus_all, minus_random with low, high, positive
    robustness  task -> step -> spearman, kendall, moved, dev_accuracy
    bridge      score_graft, score_movement, graft_movement; top -> k -> share, chance
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.metrics.overlap import kendall
from stages.lib.report.claims import Finding, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import counted, counts, extent, off_line, percent, points, with_interval
from stages.lib.report.stats import Estimate, Mean, estimate, known, mean_of, paired
from stages.lib.report.table import Column, Line, Table, by, share, shown, stored
from stages.surgical.experiment.selections import order
from stages.surgical.frames import CELL, Surgical, layer_text
from stages.surgical.rankings import PAIR, across, agreement, alike, bridges, caught

HERE = Path(__file__).parent
LAYERS_TO_RANK = 4  # two layers have two rankings and three have six: they agree or disagree by chance

# --- Tables --------------------------------------------------------------------------------------------------------


BRIDGES = ("score_graft", "score_movement", "graft_movement")
CELLS = "n: cells, one for each task and seed; mean (standard deviation over tasks)"
# other selections of as many layers
RIVALS = {
    "bottom": "with the lowest scores",
    "random": "at random",
    "first": "of the first",
    "middle": "in the middle",
    "last": "of the last",
}


def sizes(data: Surgical, *kinds: str) -> list[int]:
    """Numbers of layers for which every one of these kinds of selections was made."""
    made = [{*data.runs[data.runs.kind == kind]["size"].dropna()} for kind in kinds]
    return sorted(map(int, set.intersection(*made)))


def few(data: Surgical) -> int | None:
    """The most layers with the highest scores that are no more than half of all; None where none were trained."""
    return max((size for size in sizes(data, "top") if size <= data.layers / 2), default=None)


def plain(value: Mean | pd.Series) -> str:
    """A correlation with its deviation: "0.94 (0.05)"."""
    value = value if isinstance(value, Mean) else mean_of(value)
    if not value.n:
        return ""
    return f"{value.mean:.2f}" + ("" if value.sd is None else f" ({value.sd:.2f})")


def interval(value: Estimate) -> str:
    """That of a correlation, in words."""
    interval = "no interval" if value.low is None else f"95 % interval {value.low:.2f} to {value.high:.2f}"
    return f"{interval}; {value.sample()}"


@lru_cache(maxsize=1)
def tables(data: Surgical) -> list[Table]:
    """In the order in which they are read, also those of stages that are off."""
    return [make(data) for make in (_scores, _ways, _selections, _checkpoints, _bridge)]


def _scores(data: Surgical) -> Table:
    """Layers in the order of their scores, task by task."""
    columns = [
        Column("n", len, str),
        Column("layers, highest score first", lambda cells: layer_text(order([*cells.mean()])).replace(",", ""), str),
        Column("share of the first (%)", lambda cells: cells.mean().max() / cells.mean().sum(), percent),
    ]
    pairs = ("two tasks of a seed", "two seeds of a task", "two random heads of a cell")
    notes = [
        f"Spearman correlation of the scores of {text}: {plain(value)} ({value.sample()})"
        for text, value in zip(pairs, alike(data).values(), strict=True)
        if value.n
    ]
    score = data.surgery.score
    title = f"FIM score of layers: {score.target}, {score.aggregation}, {score.examples} examples"
    lines = [Line(task, scores.unstack("layer")) for task, scores in data.chosen().groupby("task", sort=False)]
    return Table(title, ["task"], columns, lines, notes)


def _ways(data: Surgical) -> Table:
    """Agreement of other ways to score with the ranking."""
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
    return Table(title, ["target, aggregation", "examples"], columns, lines, notes, "fim")


def score_of(runs: pd.DataFrame, measure: str = "score") -> pd.Series:
    """(task, seed) -> score or accuracy, the mean over draws."""
    return runs.groupby(CELL, sort=False)[measure].mean()


def _selections(data: Surgical) -> Table:
    """Scores of every selection, against all layers and against random ones."""

    def less(title: str, key: str, other: Callable[[pd.DataFrame], str]) -> Column:
        return Column(title, lambda runs: against(data, runs.selection.iloc[0], other(runs)), Estimate.in_points, key)

    def of_task(task: str) -> Column:
        return share(task, lambda runs: score_of(runs[runs.task == task]))

    flagged, margin = data.flagged, points(data.limits.margin).lstrip("+")
    columns = [
        Column("trained (%)", lambda runs: float((runs.trained / runs.model_parameters).mean()), percent, "trained"),
        Column("n", lambda runs: len(score_of(runs)), str), *map(of_task, dict.fromkeys(data.runs.task)),
        share("mean", lambda runs: estimate(score_of(runs)), "score"),
        share("", lambda runs: estimate(score_of(runs, "accuracy")), "accuracy"),
        less("less all", "minus_all", lambda runs: "all"),
        less("less random", "minus_random", lambda runs: f"random_{runs.selection.iloc[0].rpartition('_')[2]}"),
        Column("flagged", lambda runs: f"{flagged[runs.index].sum()} of {len(runs)}", str),
        Column("", lambda runs: int(flagged[runs.index].sum()), str, "flagged"), Column("", len, str, "runs"),
    ]  # fmt: skip
    weak = [
        f"{flagged[runs.index].sum()} of {len(runs)} of {task} ({percent(runs.majority.mean())} %)"
        for task, runs in data.runs.groupby("task", sort=False)
    ]
    notes = [
        f"score in %; {CELLS}; the draws of a random selection count as one cell, their mean",
        "trained: share of the model's parameters, a new head included",
        f"differences in percentage points, paired by cell{with_interval({*data.runs.task}, {*data.runs.seed})}",
        f"flagged: runs less than {margin} points above the share of the most frequent label (in brackets), or below it: "
        f"{', '.join(weak)}; plots/surgical/surgery.csv names them",
    ]
    names = ("score", "accuracy", "runs", "flagged", "trained", "minus_all", "minus_random")
    lines = by(data.runs, "selection")
    return Table("Fine-tuning of selected layers", ["selection"], columns, lines, notes, "surgery", names)


def against(data: Surgical, selection: str, other: str) -> Estimate:
    """Score of a selection less that of another, paired by cell; of no cells if one wasn't made."""
    first, second = (score_of(data.runs[data.runs.selection == name]) for name in (selection, other))
    return paired(first, second if selection != other else second.iloc[:0])


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
    return Table("The ranking during fine-tuning", ["task", "step"], columns, lines, notes, "robustness")


def _bridge(data: Surgical) -> Table:
    """Do the scores point to where the grafts lie?"""

    def inside(size: int) -> Column:
        means, form = caught(data, size).groupby("task").mean(), "{} ({})".format
        return Column(
            f"graft in top {size} (%)", lambda part: means.loc[part["task"]], lambda row: form(*map(percent, row))
        )

    columns = [
        Column("n", lambda part: part["score_graft"].n, str),
        *(Column(name.replace("_", ", "), lambda part, name=name: part[name], plain) for name in BRIDGES),
        *map(inside, sizes(data, "top") or [1]),
    ]
    notes = [
        f"Spearman correlations over layers; graft: share of the {data.localizer} mask of the main pipeline, over chance",
        f"graft in top k: share of the {data.localizer} mask in the k layers with the highest scores, in brackets a random mask's",
    ]
    lines = [Line(task, {"task": task, **bridges(data, task)}) for task in dict.fromkeys(data.regions.task)]
    return Table("Where the scores point and where grafts lie", ["task"], columns, lines, notes)


# --- What the claims measure ---------------------------------------------------------------------------------------


def top(size: int) -> str:
    """The selection of so many layers, in words."""
    return "the layer with the highest score" if size == 1 else f"the {size} layers with the highest scores"


def kept_by(data: Surgical, selection: str) -> pd.Series:
    """(task, seed) -> share of the score of all layers that a selection keeps; cells without a positive one are left out."""
    whole = score_of(data.runs[data.runs.selection == "all"])
    return (score_of(data.runs[data.runs.selection == selection]) / whole[whole > 0]).dropna()


def kept(data: Surgical) -> Iterable[Finding]:
    """Share of the score of all layers that the best few keep, for each number of them."""
    for size in sizes(data, "top"):
        shares = kept_by(data, f"top_{size}")
        if len(shares):
            fields = {"layers": top(size), "gap": against(data, f"top_{size}", "all").words()}
            yield Finding(estimate(shares), fields, short_of(shares))


def better(data: Surgical, *rivals: str) -> Iterable[Finding]:
    """Score of the layers with the highest scores less that of rival selections of as many."""
    for rival in rivals:
        for size in sizes(data, "top", rival):
            pair = f"top_{size}", f"{rival}_{size}"
            yield Finding(against(data, *pair), {"layers": top(size), "rival": RIVALS[rival]})


def unranked(data: Surgical) -> str:
    """Why rankings of so few layers tell nothing; empty where there are enough layers."""
    few_layers = data.layers < LAYERS_TO_RANK
    return f"; not measurable with {counted(data.layers, 'layer')}, of which there are too few rankings" * few_layers


def steady(data: Surgical) -> Iterable[Finding]:
    """The lowest agreement of a cell, in training, with the ranking before it."""
    frame = data.checkpoints[data.checkpoints.step > 0].dropna(subset="spearman")
    if len(frame):
        last = frame[frame.step == frame.groupby("task")["step"].transform("max")].set_index(CELL)
        lowest = frame.groupby(CELL, sort=False).spearman.min()
        means = {name: estimate(last[column]).mean for name, column in (("last", "spearman"), ("moved", "moved"))}
        fields = {"lowest": lowest.min(), "interval": interval(estimate(lowest)), **means}
        yield Finding(estimate(lowest), fields, short_of(lowest, "{:.2f}".format, ""), unranked(data))


def of_tasks(data: Surgical) -> Iterable[Finding]:
    """Agreement of the scores of two seeds of a task minus that of two tasks, over pairs of tasks."""
    tasks, seeds = across(data)
    same = sum(seeds.reindex(tasks.index.droplevel(level)).to_numpy() for level in PAIR) / 2
    value = estimate(same - tasks, PAIR)
    if value.n:
        means = {"tasks": estimate(tasks, PAIR).mean, "seeds": estimate(seeds).mean}
        yield Finding(value, {**means, "interval": interval(value)}, void=unranked(data))


def inside(data: Surgical) -> Iterable[Finding]:
    """Share of the graft in the layers with the highest scores less that of a random one."""
    for size in sizes(data, "top"):
        rows = caught(data, size)
        if len(rows):
            means = {name: estimate(rows[name]).mean for name in rows}
            fields = {"layers": top(size), "localizer": data.localizer, **means}
            yield Finding(paired(rows.share, rows.chance), fields)


def gained(data: Surgical) -> Finding:
    """Control of what a few layers keep: training all layers gains over training none, and over one label."""
    whole, none = (data.runs[data.runs.selection == name] for name in ("all", "none"))
    return above_baselines(score_of(whole), score_of(none), score_of(whole, "constant"), "training all layers")


def learned(data: Surgical) -> Finding:
    """Control of the ranking that stays: the same training gains on dev; a model that learns nothing keeps every ranking."""
    found = data.checkpoints.sort_values("step").groupby(CELL).dev_accuracy.agg(["first", "last"])
    lacks = "not measurable where training has not been shown to gain on dev"
    return Finding(paired(found["last"], found["first"]), lacks=lacks)


MEASURES = {
    "kept": kept, "better": better, "steady": steady, "of_tasks": of_tasks, "inside": inside, "gained": gained,
    "learned": learned,
}  # fmt: skip


# --- All of it -----------------------------------------------------------------------------------------------------


def report(data: Surgical, here: str = "") -> Report:
    """Tables, what is off, and which claims show; `here` is what all were measured with."""
    size = counts(task=data.fim.task.nunique(), seed=data.fim.seed.nunique(), layer=data.layers)
    facts = off_line([name for name, frame in (("surgery", data.runs), ("robustness", data.robustness)) if frame.empty])
    if len(data.runs):
        margin = points(data.limits.margin).lstrip("+")
        facts.insert(0, f"{data.flagged.sum()} of {len(data.runs)} fine-tunings are less than {margin} points better than the "
            f"most frequent label (surgical.margin), n = {extent(data.runs.n)} test rows")  # fmt: skip
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, data, here, data.limits)
    return Report("Surgical fine-tuning", size, shown(tables(data)), facts, claims)


def headline(data: Surgical) -> dict[str, Any]:
    """The numbers for `dvc metrics`: means over tasks of scores of all layers, none, the best half, and steadiness."""
    scores = {name: estimate(score_of(data.runs[data.runs.selection == name])).mean for name in ("all", "none")}
    size, lowest = few(data), next((finding.value.mean for finding in steady(data)), None)
    kept_half = {f"top_{size}": estimate(kept_by(data, f"top_{size}")).mean} if size else {}
    tasks = alike(data)["between_tasks"].mean
    return {"score": scores, "kept": kept_half, "lowest_agreement": lowest, "between_tasks": tasks}


def details(data: Surgical) -> dict[str, Any]:
    """Every number; see the head of this module."""
    parts = stored(tables(data))
    masks = {size: caught(data, size) for size in sizes(data, "top")}
    inside_top = {str(size): {name: estimate(rows[name]) for name in rows} for size, rows in masks.items()}
    return {**parts, "fim": known(alike(data)) | parts["fim"], "bridge": known({**bridges(data), "top": inside_top})}
