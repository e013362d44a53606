"""The report on continual learning: the paper's Table 4, forgetting and transfer, memory, and what the claims measure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.continual.forgetting import average_accuracy, backward_transfer, forgetting, learning_accuracy
from stages.continual.settings import SequenceParams
from stages.lib.errors import DataError
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.claims import Finding, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import counted, counts, extent, percent, points, small_percent, words
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, published
from stages.lib.report.stats import Estimate, estimate, known, mean_of
from stages.lib.report.table import Column, Line, Table, share, shown, stored

HERE = Path(__file__).parent
# our methods by the paper's names
PAPER_NAMES = {FINETUNED: "FT", "naive": "ContinualFT", "grafting": "GraftingContinual"}
NAIVE, GRAFTING = "naive", "grafting"
CELL = ["method", "order", "seed"]
NUMBERS = [
    "n", "accuracy", "accuracy_se", "score", "f1", "ece", "loss", "agreement", "unchanged", "agreement_with_own", "majority",
]  # fmt: skip
MEMORY = ["head", "skill", "model", "region", "own", "rate_factor"]
# of one walk through a sequence, in the order in which they are reported
MEASURES: dict[str, Callable[[np.ndarray], float]] = {
    "average": average_accuracy,
    "learned": learning_accuracy,
    "forgetting": forgetting,
    "backward_transfer": backward_transfer,
}
OFF = "off: no method or no seed is set, or no order has two of the tasks, so there is nothing to report"
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Sequences:
    """Tidy frames; measures are fractions 0..1.

    accuracy: a row for each method, order, seed, task and step since the task's own; step 0 is the
    task's own fine-tuned or pretrained model (`variant`), `length` the number of steps.  measure: a row for each method, order and seed.
    memory: a row for each method, order, seed and task: bytes kept after its step, and the multiple of the learning rate
    that dev chose for it.  `orders`: name -> tasks.
    """

    methods: list[str]
    orders: dict[str, list[str]]
    seeds: list[int]
    accuracy: pd.DataFrame
    measure: pd.DataFrame
    memory: pd.DataFrame

    def steps(self, order: str | None = None) -> pd.DataFrame:
        """Rows about the sequences themselves, of one order or of all."""
        rows = self.accuracy[self.accuracy.step > 0]
        return rows if order is None else rows[rows.order == order]

    def cells(self, method: str, at: str, measure: str = "accuracy", earlier: bool = False) -> pd.Series:
        """A measure by (order, seed, task) right after the task (at="place") or at the end ("length").

        `earlier`: of the tasks that others followed, since the last one of an order cannot have been forgotten.
        """
        rows = self.steps()
        rows = rows[(rows.method == method) & (rows.step == rows[at])]
        rows = rows[rows.place < rows.length] if earlier else rows
        return rows.set_index(["order", "seed", "task"])[measure].astype(float)

    def later(self, method: str) -> pd.DataFrame:
        """Rows of a method about tasks that were learned in an earlier step."""
        rows = self.steps()
        return rows[(rows.method == method) & (rows.step > rows.place)]

    def alone(self, variant: str, order: str | None = None) -> pd.DataFrame:
        """Rows about the fine-tuned or pretrained model, each (order, seed, task) once."""
        rows = self.accuracy[self.accuracy.variant == variant].drop_duplicates(["order", "seed", "task"])
        return rows if order is None else rows[rows.order == order]

    @property
    def kept(self) -> pd.DataFrame:
        """Rows of `memory` after the last task of each sequence."""
        return self.memory.loc[self.memory.groupby(CELL, sort=False).place.idxmax()]


def collect(seeds: list[int], settings: SequenceParams, orders: dict[str, list[str]]) -> Sequences:
    """Read the records of every method and order of the section `sequence`, for every seed.

    Raises DataError that names a missing record with the `dvc repro` that makes it, or one of other tasks.
    """
    chosen = {name: orders[name] for name in settings.orders if orders[name]} if settings.methods else {}
    cells = [
        {**cell, "task": task}
        for cell in grid(method=settings.methods, order=chosen, seed=seeds)
        for task in chosen[cell["order"]]
    ]
    path = "metrics/sequence/{method}/{order}/{seed}/{task}.json"
    needs = ("rows", "place", "kept_bytes", "model_bytes", "training")
    records = Records("continual", "sequence", path, cells, needs=needs)

    def tested(cell: Cell, record: Row) -> Iterable[Row]:
        order, place = cell["order"], record["place"]
        if record.get("tasks") != chosen[order]:
            raise DataError(f"{records.file(cell)}: is about other tasks than order.{order}; {records.made_by(cell)}")
        return [{**row, **cell, "place": place, "length": len(chosen[order])} for row in record["rows"]]

    def kept(cell: Cell, record: Row) -> Iterable[Row]:
        facts = {name: record.get(name) for name in ("region", "own")} | {
            "rate_factor": record["training"]["rate_factor"]
        }
        return [{**cell, "place": record["place"], **record["kept_bytes"], "model": record["model_bytes"], **facts}]

    columns = [*CELL, "task", "place", "length", "step", "after", "variant", *NUMBERS]
    accuracy = pd.DataFrame(records.rows(tested), columns=columns)
    memory = pd.DataFrame(records.rows(kept), columns=[*CELL, "task", "place", *MEMORY])
    return Sequences(settings.methods if chosen else [], chosen, seeds, accuracy, measures(accuracy), memory)


def measures(accuracy: pd.DataFrame) -> pd.DataFrame:
    """MEASURES of every sequence."""
    rows = [
        {**dict(zip(CELL, cell, strict=True)), **{name: of(matrix(steps)) for name, of in MEASURES.items()}}
        for cell, steps in accuracy[accuracy.step > 0].groupby(CELL, sort=False)
    ]
    return frame_of(rows, [*CELL, *MEASURES])


def matrix(rows: pd.DataFrame) -> np.ndarray:
    """R[step, task] of one sequence, tasks in its order; NaN where a task was not learned yet."""
    return rows.pivot(index="step", columns="place", values="accuracy").sort_index().to_numpy(float)


def report(data: Sequences, here: str) -> Report:
    """Tables, and which of the paper's claims hold; `here` is what all were measured with."""
    size = f"{here}; {counts(order=len(data.orders), seed=len(data.seeds), method=len(data.methods))}"
    if not data.orders:
        return Report("Continual learning", size, [], [OFF], [])
    claims = judge(read_statements(HERE / "claims.yaml"), CLAIM_MEASURES, data, here)
    return Report("Continual learning", size, shown(tables(data)), [], claims)


# --- Tables and numbers ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def tables(data: Sequences) -> list[Table]:
    """The paper's Table 4 for every order, averages over orders, and memory."""
    return [*(last_step_table(data, order) for order in data.orders), measure_table(data), memory_table(data)]


def last_step_table(data: Sequences, order: str) -> Table:
    """Table 4: accuracy on every task after the last one was learned, the paper's values below ours."""
    tasks, steps, paper = data.orders[order], data.steps(order), published(HERE / "paper.yaml")["table4"]
    last = steps[steps.step == steps.length]
    models = {variant: data.alone(variant, order) for variant in (PRETRAINED, FINETUNED)}
    models |= {method: last[last.method == method] for method in data.methods}
    columns = [share(task, lambda rows, task=task: rows[rows.task == task].accuracy, task) for task in tasks]
    columns.append(share("mean", lambda rows: rows.groupby("seed").accuracy.mean()))
    lines = [
        Line(
            PAPER_NAMES[model] if model == FINETUNED else words(model), rows, (order, model),
            paper=paper.get(PAPER_NAMES.get(model)), source=f"  paper: {PAPER_NAMES.get(model)}",
        )
        for model, rows in models.items()
    ]  # fmt: skip
    notes = [
        f"tasks in the order in which they were learned: {', '.join(tasks)}; accuracy in % after the last one",
        f"mean (standard deviation over seeds) of {counted(len(data.seeds), 'seed')}, on {extent(last.n)} test rows a task",
        "FT: a model of its own for each task, at the cap and the rates of finetune; no method of a sequence",
        "naive is the paper's ContinualFT, grafting its GraftingContinual",
    ]
    if {*tasks} & {*paper["FT"]}:
        notes.append(
            "paper: RoBERTa-base in prompt mode, 4096-shot, QNLI then AG News then SST-2; no target for others"
        )
    title = f"Table 4: after the last task, order {order}"
    return Table(title, ["method"], columns, lines, notes, "order")


def _by_seed(measure: str) -> Callable[["tuple[Sequences, str]"], pd.Series]:
    """Mean over orders in each seed, of a line of (data, method): two orders of the same tasks are not two samples."""
    return lambda line: line[0].measure[line[0].measure.method == line[1]].groupby("seed")[measure].mean()


def _in_points(values: pd.Series) -> str:
    mean = mean_of(values)
    return points(mean.mean) + (f" ({points(mean.sd).lstrip('+')})" if mean.sd is not None else "")


def measure_table(data: Sequences) -> Table:
    """Average accuracy, forgetting, backward transfer and calibration of every method."""
    columns = [
        share("average accuracy at the end", _by_seed("average"), "average"),
        share("average when just learned", _by_seed("learned"), "learned"),
        Column("forgetting", _by_seed("forgetting"), _in_points, "forgetting"),
        Column("backward transfer", _by_seed("backward_transfer"), _in_points, "backward_transfer"),
    ]
    if data.accuracy.ece.notna().any():
        ece = [("ECE when just learned", "place", "learned_ece"), ("ECE at the end", "length", "ece")]
        columns += [
            share(title, lambda line, at=at: line[0].cells(line[1], at, "ece").groupby("seed").mean(), key)
            for title, at, key in ece
        ]
    lines = [Line(words(method), (data, method), method) for method in data.methods]
    notes = [
        f"mean (standard deviation over seeds) of means over {counted(len(data.orders), 'order')}; {counted(len(data.seeds), 'seed')}",
        "accuracies and expected calibration errors (ECE) in %, over all tasks; forgetting and backward transfer in percentage "
        "points, over all tasks but the last of an order, which cannot have been forgotten",
        "forgetting: best accuracy since a task was learned, before the last step - accuracy at the end (Chaudhry et al.)",
        "backward transfer: accuracy at the end - accuracy when just learned (Lopez-Paz and Ranzato)",
        f"learning rates that dev chose, as multiples of that of the task's own fine-tuning, and for how many tasks: {_chosen_rates(data)}",
    ]
    return Table("Over all orders and seeds", ["method"], columns, lines, notes, "measure")


def _chosen_rates(data: Sequences) -> str:
    """For each method how often dev chose each multiple of the rate: "naive 1 (5), 4 (7)"."""
    times = data.memory.groupby(["method", "rate_factor"]).size()
    return "; ".join(
        f"{words(method)} " + ", ".join(f"{factor:g} ({count})" for factor, count in times[method].items())
        for method in data.methods
    )


def memory_table(data: Sequences) -> Table:
    """Bytes to be kept beside one model."""
    kept = data.kept
    first, each = data.memory[data.memory.place == 1].groupby("method")["skill"].mean(), kept["skill"] / kept.place
    rows = pd.DataFrame(
        {"first": first, "last": kept.groupby("method")["skill"].mean(), "each": each.groupby(kept.method).mean()}
    )
    whole, tasks = kept.model.max(), kept.groupby(["order", "seed"]).place.max().mean()
    rows.loc["a model for each task"] = [whole, tasks * whole, whole]
    rows["share"] = rows["each"] / whole
    columns = [
        *(
            Column(title, lambda row, name=name: float(row[name]), size, name)
            for title, name in (("after the first task", "first"), ("after the last", "last"), ("per task", "each"))
        ),
        Column("of a model, per task", lambda row: float(row.share), small_percent, "share"),
    ]
    lines = [Line(words(method), rows.loc[method], method) for method in data.methods]
    lines.append(Line("a model for each task", rows.iloc[-1], kind="average"))
    notes = [
        f"bytes kept beside one model of {size(whole)}, means over orders and seeds; per task: after the last step, over the number of tasks",
        f"without the heads of standard mode, which every method keeps ({size(float((kept['head'] / kept.place).mean()))} a task)",
        "grafting: index and value of a task's own parameters, 4 bytes each; it goes back to the pretrained model",
        "replay: stored rows as text; EWC: Fisher information and anchor, of all tasks together",
    ]
    taken = data.memory[(data.memory.place > 1) & data.memory.own.notna()]
    if len(taken):
        lost = 1 - (taken.own.astype(float) / taken.region.astype(float)).mean()
        notes.append(
            f"grafting: of the region of a task after the first, {percent(lost)} % were taken by earlier tasks"
        )
    return Table("Memory", ["method"], columns, lines, notes, "memory")


def size(count: float) -> str:
    """Bytes in the largest unit that leaves 1 or more of it: "3.1 MiB"."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def headline(data: Sequences) -> dict[str, Any]:
    """The numbers for `dvc metrics`: accuracy at the end and forgetting, of naive fine-tuning and grafting."""
    return {
        name: {method: mean_of(_by_seed(name)((data, method))).mean for method in (NAIVE, GRAFTING) if method in data.methods}
        for name in ("average", "forgetting")
        if data.orders
    }  # fmt: skip


def details(data: Sequences) -> dict[str, Any]:
    """Every number: the tables, what the claims compare, and the share of later tests with the same logits."""
    if not data.orders:
        return {}
    both = {NAIVE, GRAFTING} <= {*data.methods}
    gaps = {measure: gap(data, GRAFTING, NAIVE, "length", measure) for measure in ("accuracy", "ece")} if both else {}
    unchanged = {name: float(data.later(name).unchanged.astype(float).mean()) for name in data.methods}
    return {**stored(tables(data)), "grafting_minus_naive": known(gaps), "unchanged": unchanged}


# --- What the claims measure -----------------------------------------------------------------------------------


def gap(
    data: Sequences, first: str, second: str, at: str, measure: str = "accuracy", earlier: bool = False
) -> Estimate:
    """A measure of one method less that of another; orders and seeds are averaged within a task."""
    return estimate(data.cells(first, at, measure, earlier) - data.cells(second, at, measure, earlier))


def unchanged(data: Sequences) -> list[Finding]:
    """An answer: grafting's logits on earlier tasks stay the same, by what was predicted and not by averages."""
    same = {method: data.later(method).unchanged.astype(bool) for method in data.methods}
    if GRAFTING not in same:
        return []
    own = same.pop(GRAFTING)
    others = ", ".join(f"{words(name)} in {values.sum()} of {len(values)}" for name, values in same.items())
    fields = {"same": own.sum(), "tests": counted(len(own), "later test"), "others": f"; {others}" if others else ""}
    return [Finding(bool(own.all()), fields)]


def loss(data: Sequences, method: str) -> list[Finding]:
    """Accuracy right after a task less that at the end, of all tasks but the last of each order."""
    if method not in data.methods:
        return []
    learned, end = (data.cells(method, at, earlier=True) for at in ("place", "length"))
    fields = {"first": learned.groupby("task").mean().mean(), "second": end.groupby("task").mean().mean()}
    return [Finding(estimate(learned - end), fields, short_of(learned - end, points, ""))]


def compared(
    data: Sequences, first: str, second: str, at: str, measure: str = "accuracy", tasks: str = "all"
) -> list[Finding]:
    """A measure of one method less that of another at the end or when just learned, of all tasks or the `earlier` ones.

    `earlier` beside all tasks: the difference on those that could have been forgotten.
    """
    if not {first, second} <= {*data.methods} or data.accuracy[measure].isna().all():
        return []
    values = [data.cells(method, at, measure, tasks == "earlier") for method in (first, second)]
    means = dict(zip(("first", "second"), (value.groupby("task").mean().mean() for value in values), strict=True))
    fields = {**means, "earlier": points(gap(data, first, second, at, measure, True).mean)}
    return [Finding(estimate(values[0] - values[1]), fields, short_of(values[0] - values[1], points, ""))]


def gained(data: Sequences) -> Finding:
    """Control of whatever is kept: naive fine-tuning has gained something over the pretrained model, and over one label."""
    before = data.alone(PRETRAINED).set_index(["order", "seed", "task"])[["accuracy", "majority"]].astype(float)
    return above_baselines(data.cells(NAIVE, "place"), before.accuracy, before.majority, "fine-tuning")


def memory(data: Sequences) -> list[Finding]:
    """The largest share of a model that grafting keeps for a task: what its step adds to what was kept before."""
    kept = data.memory[data.memory.method == GRAFTING].sort_values("place")
    added = kept["skill"] - kept.groupby(["order", "seed"])["skill"].shift(fill_value=0)
    return [Finding(float((added / kept.model).max()))] if len(kept) else []


CLAIM_MEASURES = {"unchanged": unchanged, "loss": loss, "compared": compared, "gained": gained, "memory": memory}
