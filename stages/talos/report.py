"""The report of task arithmetic: its tables, and what its claims measure."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.metrics.composition import KEY, KINDS, QUERY
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import counted, off_line
from stages.lib.report.load import Collected, in_order, published
from stages.lib.report.stats import Estimate, compared, known, mean_of, paired
from stages.lib.report.table import Column, Line, Table, by, count, number, share, shown, stored, values_in
from stages.talos.frames import CELL

HERE = Path(__file__).parent
# methods in the order in which they are compared, by the names that tables and figures give them
TITLES = {
    "full": "full fine-tuning", "linear": "linearised", "attention": "attention only", "ties": "TIES (of full)",
    "dare": "DARE (of full)", "lota": "LoTA (top movement)", "talos": "TaLoS", "random": "random mask", "graft": "graft",
}  # fmt: skip
# in metrics/talos.json
COMPARED = (("talos", "full"), ("talos", "linear"), ("talos", "random"), ("graft", "full"), ("graft", "talos"))

N = count(*CELL)
ALPHA = Column("alpha", "alpha", values_in("g"))
OVER_CELLS = "mean over cells (task, seed), in brackets their standard deviation; n is the number of cells"
VALUES = "mean over cells, in brackets the standard deviation"
PAPER = "  paper (ViT-B/32)"
MIB = 2**20


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order in which they are compared."""
    return in_order(names, TITLES)


def title(method: str) -> str:
    """A method's name for people; other localizers are called by their own."""
    return TITLES.get(method, method.replace("_", " "))


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
        share("added / full single", "by_full")]  # fmt: skip
    notes = [
        f"accuracy on test in %; {OVER_CELLS}",
        "single: the method's own model of that task alone; added: one model for all tasks, pretrained + alpha * sum of vectors",
        "a method with weak single models is flattered by added / own single; compare the absolute columns too",
        f"alpha is chosen on dev, the smallest of equally good ones; alpha 1/{len(talos.tasks)} is the average of the single models",
    ]  # fmt: skip
    lines = _with_pretrained(talos.frames["addition"], {"accuracy": "pretrained"}, paper)
    stored = ("accuracy", "single", "by_own", "by_full")
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
    stored = ("target", "control", "control_kept")
    return Table("Task negation", ["method"], columns, lines, notes, "negation", stored)


def _apart(talos: Collected) -> pd.DataFrame:
    """Ratios on the own task, on other ones, and how far these are from 1; NaN where a row is about the other kind."""
    frame = talos.frames["localization"]
    ratio, own = pd.to_numeric(frame.ratio), frame.trained_on == frame.task
    return frame.assign(own=ratio.where(own), other=ratio.where(~own), away=(ratio.where(~own) - 1).abs())


def _localization(talos: Collected) -> Table:
    columns = [
        N,
        share("own task", "own"),
        share("other tasks", "other"),
        share("distance from 1 on other tasks", "away"),
    ]
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

    columns = [
        count("pair", "seed"),
        *(error(name, part) for part in ("searched", "all") for name in ("e1", "e2", "mean")),
    ]
    notes = [
        "share of predictions that change when the other task's vector is added, in %, mean over the grid; searched: |alpha| of at most 1",
        "a vector that changes nothing has no error either: look at the own task in the table above",
    ]
    lines = by(talos.frames["disentangle"], "method", title, ordered)
    return Table("Weight-disentanglement error", ["method"], columns, lines, notes, "disentangle", ("searched", "all"))


def _pruning(talos: Collected) -> Table:
    return Table(
        "", ["kind"], [share("", "ratio")], by(talos.frames["pruned"], "kind"), name="pruned", stored=("ratio",)
    )


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
    return Table("Masks", ["method"], columns, lines, notes, "masks", ("task_iou", "chance"))


def _calibration(talos: Collected) -> Table:
    notes = [
        "IoU with the mask calibrated as params.yaml says, in %; other draw repeats that with other labels drawn, which "
        "tells how much chance alone changes",
    ]
    columns = [N, share("IoU", "iou"), share("by chance", "chance")]
    lines = by(talos.frames["overlap"], "variant", lambda name: name.replace("_", " "))
    name = "Calibration of the TaLoS mask in other ways"
    return Table(name, ["calibration"], columns, lines, notes, "calibration", ("iou",))


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
        "full and graft come from the main pipeline, whose time is not counted here; a graft trains the whole region first",
    ]
    return Table("Costs of one task", ["method"], columns, by(talos.frames["cost"], "method", title, ordered), notes)


def tables(talos: Collected) -> list[Table]:
    """All of them, also those without lines; `pruned` is only stored."""
    makers = (_addition, _negation, _localization, _errors, _pruning, _masks, _calibration, _costs)
    return [make(talos) for make in makers]


# --- What the claims measure ---------------------------------------------------------------------------------------


def added(talos: Collected, first: str, second: str) -> Estimate:
    """Accuracy of first - second after addition, over (task, seed)."""
    return compared(talos.frames["addition"], "accuracy", (first, second), CELL)


def negated(talos: Collected, first: str, second: str) -> Estimate:
    """Target accuracy of second - first after negation, so positive where first takes more; weak controls left out."""
    frame = talos.frames["negation"]
    return compared(frame[~frame.weak_control.astype(bool)], "accuracy", (second, first), CELL)


def localized(talos: Collected, first: str, second: str) -> Finding:
    """Distance from 1 of the ratio on other tasks of second - first, over (trained on, task, seed)."""
    return _unless_idle(talos, first, compared(_apart(talos), "away", (second, first), ["trained_on", *CELL]))


def disentangled(talos: Collected, first: str, second: str) -> Finding:
    """Error of second - first where alpha is searched, over (pair, seed)."""
    means = searched(talos.frames["disentangle"]).groupby(["method", "pair", "seed"], as_index=False)["mean"].mean()
    return _unless_idle(talos, first, compared(means, "mean", (second, first), ["pair", "seed"]))


def _unless_idle(talos: Collected, method: str, value: Estimate) -> Finding:
    """Where a method leaves its own tasks alone too, that it leaves other ones alone says nothing."""
    frame = talos.frames["localization"]
    own = frame[(frame.method == method) & (frame.trained_on == frame.task)]
    idle = value.n and not (own.accuracy - own.pretrained).mean() > 0
    return Finding(value, void="; its vectors bring their own tasks no accuracy, so this says nothing" if idle else "")


def pruned(talos: Collected, kind: str, other: str = "") -> list[Finding]:
    """Share of the zero-shot accuracy that pruning of a kind keeps, or how much more than that of another kind."""
    frame = talos.frames["pruned"]
    values = {name: part.set_index(["scored_on", *CELL]).ratio.astype(float) for name, part in frame.groupby("kind")}
    if not {"least", "random", "most"} <= {*values}:
        return []
    return [Finding(paired(values[kind], values[other]) if other else mean_of(values[kind]))]


def alike(talos: Collected) -> Estimate:
    """IoU of the TaLoS masks of two tasks - that by chance."""
    frame = talos.frames["task_iou"]
    both = frame[frame.method == "talos"].set_index(["first", "second", "seed"])
    return paired(both.iou.astype(float), both.chance.astype(float))


def query_and_key(talos: Collected) -> Estimate:
    """Share of attention's query and key that TaLoS selects - share of the whole region."""
    frame = talos.frames["tensors"]
    own = frame[frame.method == "talos"]
    return paired(share_of(own[own.kind.isin([QUERY, KEY])]), share_of(own))


MEASURES = {
    "added": added, "negated": negated, "localized": localized, "disentangled": disentangled, "pruned": pruned,
    "alike": alike, "query_and_key": query_and_key,
}  # fmt: skip


# --- All of it -----------------------------------------------------------------------------------------------------


def report(talos: Collected) -> Report:
    """Tables, which stages are off, and which effects show."""
    size = f"{counted(len(talos.tasks), 'task')}, {counted(len(talos.seeds), 'seed')}"
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, talos, empty=True)
    return Report("Task arithmetic with localized vectors", size, shown(tables(talos)), off_line(talos.off), claims)


def numbers(talos: Collected) -> dict[str, Any]:
    """metrics/talos.json: for each table that is stored line -> column -> n, mean, sd; then differences of two methods."""
    differences = {
        "-".join(pair): {"added": added(talos, *pair), "negated": negated(talos, *pair)} for pair in COMPARED
    }
    return {**stored(tables(talos)), "compare": known(differences)}
