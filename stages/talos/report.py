"""The report of task arithmetic: its tables, and what its claims measure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.metrics.composition import KEY, KINDS, QUERY
from stages.lib.report.claims import Finding, Measure, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import counts, off_line, percent, small_percent, words
from stages.lib.report.load import Collected, in_order, published
from stages.lib.report.stats import estimate, known
from stages.lib.report.table import Column, Line, Table, by, count, number, share, shown, stored, values_in
from stages.talos.frames import CELL

HERE = Path(__file__).parent
# methods in the order in which they are compared, by the names that tables and figures give them
TITLES = {
    "full": "full (main pipeline)", "full_matched": "full fine-tuning", "linear": "linearised", "attention": "attention only",
    "ties": "TIES (of full)", "dare": "DARE (of full)", "lota": "LoTA (top movement)", "talos": "TaLoS", "random": "random mask", "graft": "graft",
}  # fmt: skip
# in metrics/talos.details.json
COMPARED = (("talos", "full_matched"), ("talos", "linear"), ("talos", "random"), ("graft", "full"), ("graft", "talos"))

N = count(*CELL)
ALPHA = Column("alpha", "alpha", values_in("g"))
OVER_CELLS = "mean over cells (task, seed), in brackets their standard deviation; n is the number of cells"
VALUES = "mean over cells, in brackets the standard deviation"
PAPER = "  paper (ViT-B/32)"
PAIR = ("first", "second")
# a trained model, and what it has to be above
BASES = ("accuracy", "pretrained", "majority")
MIB = 2**20


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order in which they are compared."""
    return in_order(names, TITLES)


def title(method: str) -> str:
    """A method's name for people; other localizers are called by their own."""
    return TITLES.get(method) or words(method)


# --- Tables --------------------------------------------------------------------------------------------------------


def searched(rows: pd.DataFrame) -> pd.DataFrame:
    """The part of the grid of both coefficients in which alpha is searched."""
    return rows[rows[["alpha1", "alpha2"]].abs().max(axis=1) <= 1]


def share_of(rows: pd.DataFrame) -> pd.Series:
    """Selected / all parameters of some tensors, one value for each cell."""
    sums = rows.groupby(CELL)[["selected", "parameters"]].sum()
    return sums.selected / sums.parameters


def _with_pretrained(frame: pd.DataFrame, values: dict[str, str], paper: dict[str, dict[str, float]]) -> list[Line]:
    """The pretrained model, whose values stand beside those of every method, and then the methods."""
    first = frame[frame.method == frame.method.iloc[0]] if len(frame) else frame
    start = first[CELL].assign(**{name: first[column] for name, column in values.items()})
    head = [Line("pretrained", start, paper=paper["pretrained"])] if len(frame) else []
    return [replace(line, source=PAPER) for line in head + by(frame, "method", title, ordered, paper)]


def _addition(talos: Collected) -> Table:
    paper = published(HERE / "paper.yaml")["addition"]
    columns = [N, ALPHA, share("single", "single"), share("added", "accuracy"), share("added / own single", "by_own"),
        share("added / full single", "by_full"), share("gain", "gain")]  # fmt: skip
    notes = [
        f"accuracy on test in %; {OVER_CELLS}",
        "full: the main pipeline's fine-tuned model, by its own optimizer and rate; full fine-tuning: the whole region, trained as TaLoS is",
        "single: the method's own model of that task alone; added: one model for all tasks, pretrained + alpha * sum of vectors",
        "a method with weak single models is flattered by added / own single; compare the absolute columns too",
        "gain: (added - pretrained) / (full single - pretrained), where that gained as much as summary.least_gain asks for",
        f"alpha is chosen on dev, the smallest of equally good ones; alpha 1/{len(talos.tasks)} is the average of the single models",
    ]  # fmt: skip
    lines = _with_pretrained(talos.frames["addition"], {"accuracy": "pretrained"}, paper)
    stored = ("accuracy", "single", "by_own", "by_full", "gain")
    return Table("Task addition", ["method"], columns, lines, notes, "addition", stored)


def _negation(talos: Collected) -> Table:
    frame, paper = talos.frames["negation"], published(HERE / "paper.yaml")["negation"]
    columns = [N, ALPHA, share("target (lower is better)", "accuracy", "target"), share("control", "control_accuracy", "control"),
        share("control kept", "control_kept")]  # fmt: skip
    notes = [
        f"accuracy on test in %; {OVER_CELLS}",
        "alpha is chosen on dev for each task: the lowest target accuracy among those that keep the control",
    ]
    weak = frame[frame.weak_control.astype(bool)].drop_duplicates(["task", "control", "seed"])
    cells = [f"{row.task} against {row.control}, seed {row.seed}" for row in weak.itertuples()]
    if cells:
        notes.append(
            f"flagged: the control starts at about chance on dev, so keeping it says little: {'; '.join(cells)}"
        )
    lines = _with_pretrained(frame, {"accuracy": "pretrained", "control_accuracy": "control_zero_shot"}, paper)
    return Table("Task negation", ["method"], columns, lines, notes, "negation")


def _apart(talos: Collected) -> pd.DataFrame:
    """Ratios on the own task, on other ones, and how far these are from 1; NaN where a row is about the other kind."""
    frame = talos.frames["localization"]
    ratio, own = pd.to_numeric(frame.ratio), frame.trained_on == frame.task
    return frame.assign(own=ratio.where(own), other=ratio.where(~own), away=(ratio.where(~own) - 1).abs())


def _localization(talos: Collected) -> Table:
    far = share("distance from 1 on other tasks", "away")
    columns = [N, share("own task", "own"), share("other tasks", "other"), far]
    notes = [
        f"accuracy / zero-shot accuracy of the pretrained model, in %; {VALUES}",
        "a vector that does nothing for its own task leaves others alone too: look at the own task first",
    ]
    lines = by(_apart(talos), "method", title, ordered)
    return Table("Function localization", ["method"], columns, lines, notes, "localization", ("other", "own"))


def _errors(talos: Collected) -> Table:
    """Error over the whole grid and where alpha is searched."""

    def error(name: str, part: str) -> Column:
        def of(rows: pd.DataFrame) -> pd.Series:
            chosen = searched(rows) if part == "searched" else rows
            return chosen.groupby(["pair", "seed"])[name].mean()

        return share(f"{name} {part}", of, part if name == "mean" else "")

    errors = [error(name, part) for part in ("searched", "all") for name in ("e1", "e2", "mean")]
    notes = [
        "share of predictions that change when the other task's vector is added, in %, mean over the grid; searched: |alpha| of at most 1",
        "a vector that changes nothing has no error either: look at the own task in the table above",
    ]
    lines = by(talos.frames["disentangle"], "method", title, ordered)
    return Table(
        "Weight-disentanglement error", ["method"], [count("pair", "seed"), *errors], lines, notes, "disentangle"
    )


def _pruning(talos: Collected) -> Table:
    return Table("", ["kind"], [share("", "ratio")], by(talos.frames["pruned"], "kind"), name="pruned")


def _masks(talos: Collected) -> Table:
    """Where masks lie, and how alike those of different tasks are."""
    frame, shared = talos.frames["tensors"], talos.frames["task_iou"]

    def of_kind(kind: str) -> Column:
        return share(kind, lambda data: share_of(data["tensors"][data["tensors"].kind == kind]))

    columns = [share("selected", lambda data: share_of(data["tensors"])), *map(of_kind, sorted({*frame.kind}, key=KINDS.index)),
        share("IoU of two tasks", lambda data: data["pairs"].iou, "task_iou"),
        share("by chance", lambda data: data["pairs"].chance, "chance")]  # fmt: skip
    lines = [
        replace(line, data={"tensors": line.data, "pairs": shared[shared.method == line.key]})
        for line in by(frame, "method", title, ordered)
    ]
    notes = [f"share of the parameters of each kind that a mask selects, in %; {VALUES}"]
    return Table("Masks", ["method"], columns, lines, notes, "masks")


def _calibration(talos: Collected) -> Table:
    notes = [
        "IoU with the mask calibrated as params.yaml says, in %; other draw repeats that with other labels drawn, which "
        "tells how much chance alone changes",
    ]
    columns = [N, share("IoU", "iou"), share("by chance", "chance")]
    lines, heading = by(talos.frames["overlap"], "variant", title), "Calibration of the TaLoS mask in other ways"
    return Table(heading, ["calibration"], columns, lines, notes, "calibration", ("iou",))


def _costs(talos: Collected) -> Table:
    def mean(rows: pd.DataFrame, name: str) -> float:
        return pd.to_numeric(rows[name]).mean() if name in rows else float("nan")

    columns = [
        number("gradient examples", "gradient_examples", ",.0f"), number("calibration s", "calibration_seconds", ".2f"),
        number("steps", "steps", ",.0f"), number("training s", "train_seconds", ".2f"),
        number("s / step", lambda rows: [mean(rows, "train_seconds") / mean(rows, "steps")], ".2f"),
        number("peak MiB", "peak_bytes", ".1f", MIB), number("trained", "trained", ",.0f"),
        number("optimizer MiB", "optimizer_bytes", ".1f", MIB), number("checkpoint MiB", "checkpoint_bytes", ".1f", MIB),
    ]  # fmt: skip
    notes = [
        "mean over cells; gradient examples: backward passes of single examples before training; peak: of the whole process",
        "full (main pipeline) and graft come from there, whose time is not counted here; a graft and LoTA train the whole region first",
        "steps: over the grid of learning rates; of these two those of their chosen point alone",
    ]
    return Table("Costs of one task", ["method"], columns, by(talos.frames["cost"], "method", title, ordered), notes)


@lru_cache(maxsize=1)
def tables(talos: Collected) -> list[Table]:
    """All of them, also those without lines; `pruned` is only stored."""
    makers = (_addition, _negation, _localization, _errors, _pruning, _masks, _calibration, _costs)
    return [make(talos) for make in makers]


# --- What the claims measure ---------------------------------------------------------------------------------------


def _contrast(
    frame: pd.DataFrame, measure: str, methods: Sequence[str], tasks: Sequence[str], sign: int = 1
) -> Finding:
    """First - second of two methods over the cells that both have, or with `sign` -1 how much lower the first is."""
    sides = [frame[frame.method == name].set_index([*tasks, "seed"])[measure].astype(float) for name in methods]
    both = pd.concat(sides, axis=1, keys=PAIR, join="inner").dropna()
    value, means = estimate(sign * (both["first"] - both["second"]), tasks), both.groupby(level=[*tasks]).mean().mean()
    return Finding(value, {"difference": "{} against {} %, {}".format(*map(percent, means), value.words())})


def _sized(talos: Collected, finding: Finding, methods: Iterable[str]) -> Finding:
    """The finding with the share of the region that these methods train, where it is not all of it."""
    sums = talos.frames["cost"].groupby("method")[["selected", "graftable"]].sum()
    shares = (sums.selected / sums.graftable).to_dict()
    texts = [f"{title(name)} {small_percent(shares[name])}" for name in methods if shares.get(name, 1) < 1]
    return replace(finding, size=", ".join(texts))


def added(talos: Collected, *methods: str) -> Finding:
    """Accuracy after addition."""
    return _sized(talos, _contrast(talos.frames["addition"], "accuracy", methods, ["task"]), methods)


def negated(talos: Collected, *methods: str) -> Finding:
    """Target accuracy after negation that the first leaves below the second's; cells with a weak control are left out."""
    return _sized(talos, _contrast(_kept_apart(talos), "accuracy", methods, ["task"], -1), methods)


def _kept_apart(talos: Collected) -> pd.DataFrame:
    frame = talos.frames["negation"]
    return frame[~frame.weak_control.astype(bool)]


def localized(talos: Collected, *methods: str) -> Finding:
    """Distance to 1 of the ratio on other tasks, that the first saves, over pairs of tasks."""
    return _sized(talos, _contrast(_apart(talos), "away", methods, ["trained_on", "task"], -1), methods)


def disentangled(talos: Collected, *methods: str) -> Finding:
    """Error that the first saves where alpha is searched, over pairs of tasks."""
    return _sized(talos, _contrast(search_errors(talos), "mean", methods, PAIR, -1), methods)


def search_errors(talos: Collected) -> pd.DataFrame:
    """Mean error where alpha is searched, a row for each method, pair of tasks (first, second) and seed."""
    frame = searched(talos.frames["disentangle"])
    means = frame.groupby(["method", "pair", "seed"], as_index=False, sort=False)["mean"].mean()
    pairs = [pair.split("+") for pair in means.pair]
    return means.assign(**{name: [pair[side] for pair in pairs] for side, name in enumerate(PAIR)})


def pruned(talos: Collected, *kinds: str) -> Finding:
    """Share of the zero-shot accuracy that pruning of a kind keeps, or how much more than that of a second kind."""
    frame, tasks = talos.frames["pruned"].rename(columns={"kind": "method"}), ["scored_on", "task"]
    size = f"{small_percent(frame.pruned.mean())} of the parameters set to 0" if len(frame) else ""
    if len(kinds) > 1:
        return replace(_contrast(frame, "ratio", kinds, tasks), size=size)
    rows = frame[frame.method.isin(kinds)].set_index([*tasks, "seed"])
    constant = (rows.majority / rows.pretrained).groupby("task").mean().mean()
    kept = rows.ratio.astype(float)
    return Finding(estimate(kept, tasks), {"constant": constant}, short_of(kept), size=size)


def alike(talos: Collected) -> Finding:
    """IoU of the TaLoS masks of two tasks, and that by chance."""
    frame = talos.frames["task_iou"]
    rows = frame[frame.method == "talos"].melt([*PAIR, "seed"], ["iou", "chance"], "method", "value")
    return _sized(talos, _contrast(rows, "value", ("iou", "chance"), PAIR), ["talos"])


def query_and_key(talos: Collected) -> Finding:
    """Share of attention's query and key that TaLoS selects, and share of the whole region."""
    frame = talos.frames["tensors"]
    own = frame[frame.method == "talos"]
    parts = {"part": own[own.kind.isin([QUERY, KEY])], "whole": own}
    rows = pd.concat([share_of(rows).reset_index(name="share").assign(method=name) for name, rows in parts.items()])
    return _sized(talos, _contrast(rows, "share", [*parts], ["task"]), ["talos"])


def _control(rows: pd.DataFrame, first: str, second: str, missing: str) -> Finding:
    """One column less another; unless that is above 0, what it is a control of says nothing."""
    cells = rows.set_index(CELL)
    lacks = f"not measurable where {missing}"
    return Finding(estimate((cells[first] - cells[second]).astype(float)), lacks=lacks)


def gains(talos: Collected, method: str) -> Finding:
    """Control: what the models of single tasks gain over the pretrained one."""
    frame = talos.frames["localization"]
    own = (
        frame[(frame.method == method) & (frame.trained_on == frame.task)]
        .set_index(CELL)
        .astype(dict.fromkeys(BASES, float))
    )
    return above_baselines(*(own[name] for name in BASES), title(method))


def above_constant(talos: Collected) -> Finding:
    """Control of pruning: how far the pretrained model is above always answering with the most frequent label."""
    missing = "the pretrained model has not been shown to beat the most frequent label"
    return _control(talos.frames["pruned"].drop_duplicates(CELL), "pretrained", "majority", missing)


def controlled(talos: Collected) -> Finding:
    """Control of negation: how far the task that has to keep its accuracy starts above the most frequent label."""
    missing = "the control task has not been shown to start above the most frequent label"
    # several targets may have the same one
    rows = _kept_apart(talos).drop(columns="task").rename(columns={"control": "task"}).drop_duplicates(CELL)
    return _control(rows, "control_zero_shot", "control_majority", missing)


def _where_asked(stage: str, measure: Callable[..., Finding]) -> Measure:
    """The measure of two methods, which finds nothing where the stage wasn't asked for one of them."""
    return lambda talos, *methods: measure(talos, *methods) if {*methods} <= {*talos.frames[stage].method} else []


MEASURES = {
    "added": _where_asked("addition", added), "negated": _where_asked("negation", negated),
    "localized": _where_asked("localization", localized), "disentangled": _where_asked("disentangle", disentangled),
    "pruned": pruned,
    "alike": alike, "query_and_key": query_and_key, "gained": partial(gains, method="full_matched"), "full_gained": partial(gains, method="full"),
    "talos_gained": partial(gains, method="talos"), "above_constant": above_constant, "controlled": controlled,
}  # fmt: skip


# --- All of it -----------------------------------------------------------------------------------------------------


def report(talos: Collected, here: str = "") -> Report:
    """Tables, which stages are off, and which effects show; `here` is what all were measured with."""
    size = counts(task=len(talos.tasks), seed=len(talos.seeds))
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, talos, here)
    return Report("Task arithmetic with localized vectors", size, shown(tables(talos)), off_line(talos.off), claims)


def headline(talos: Collected) -> dict[str, Any]:
    """The numbers for `dvc metrics`: means over tasks of accuracy after addition, share kept by pruning, IoU of two tasks' masks."""
    frame, kept = talos.frames["addition"].set_index(CELL), pruned(talos, "least").value.mean
    means = {name: estimate(frame.accuracy[frame.method == name]).mean for name in ("full_matched", "talos", "graft")}
    overlap = talos.frames["task_iou"].groupby("method").iou.mean().get("talos")
    return {"added": means, "pruned_least_kept": kept, "task_iou": overlap}


def details(talos: Collected) -> dict[str, Any]:
    """Every number: for each table that is stored line -> column -> n, mean, sd; then differences of two methods."""
    differences = {
        "-".join(pair): {"added": added(talos, *pair).value, "negated": negated(talos, *pair).value}
        for pair in COMPARED
    }
    return {**stored(tables(talos)), "compare": known(differences)}
