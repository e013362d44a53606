"""The report on continual learning: the paper's Table 4, forgetting and transfer, memory, and claims."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.continual.forgetting import average_accuracy, backward_transfer, forgetting, learning_accuracy
from stages.continual.settings import SequenceParams
from stages.lib.errors import DataError
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report import document
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import bounds, counted, points, spread
from stages.lib.report.load import Cell, Records, Row, frame_of, published
from stages.lib.report.stats import Difference, mean_of, paired
from stages.lib.report.table import Column, Line, Table, numbers_of, share

PAPER = Path(__file__).with_name("paper.yaml")
CLAIMS = Path(__file__).with_name("claims.yaml")
# our methods by the paper's names
PAPER_NAMES = {FINETUNED: "FT", "naive": "ContinualFT", "grafting": "GraftingContinual"}
GRAFTING = "grafting"
CELL = ["method", "order", "seed"]
TASK = ["order", "seed", "task"]
NUMBERS = ["n", "accuracy", "accuracy_se", "score", "f1", "ece", "loss", "agreement", "unchanged", "agreement_with_own"]
MEMORY = ["head", "skill", "model", "region", "own"]
# of one walk through a sequence, in the order in which they are reported
MEASURES: dict[str, Callable[[np.ndarray], float]] = {
    "average": average_accuracy,
    "learned": learning_accuracy,
    "forgetting": forgetting,
    "backward_transfer": backward_transfer,
}
OFF = "off: no method, no order or no seed is set, so there is nothing to report"
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LEAST_SHOWN = 0.1


@dataclass(frozen=True)
class Sequences:
    """Tidy frames; measures are fractions 0..1.

    accuracy: a row for each method, order, seed, task and step since the task's own; step 0 is the
    task's own fine-tuned or pretrained model (`variant`), `length` the number of steps.  measure: a row for each method, order and seed.
    memory: a row for each method, order, seed and task: bytes kept after its step.  `orders`: name -> tasks.
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

    def last(self, order: str | None = None) -> pd.DataFrame:
        """Rows after the last step."""
        rows = self.steps(order)
        return rows[rows.step == rows.length]

    def later(self, method: str) -> pd.DataFrame:
        """Rows of a method about tasks that were learned in an earlier step."""
        rows = self.steps()
        return rows[(rows.method == method) & (rows.step > rows.place)]

    def alone(self, variant: str, order: str | None = None) -> pd.DataFrame:
        """Rows about the fine-tuned or pretrained model, each (order, seed, task) once."""
        rows = self.accuracy[self.accuracy.variant == variant].drop_duplicates(["order", "seed", "task"])
        return rows if order is None else rows[rows.order == order]


def collect(seeds: list[int], settings: SequenceParams, orders: dict[str, list[str]]) -> Sequences:
    """Read the records of every method and order of the section `sequence`, for every seed.

    Raises DataError that names a missing record with the `dvc repro` that makes it, or one of other tasks.
    """
    chosen = {name: orders[name] for name in settings.orders if orders[name]} if settings.methods else {}
    cells = [
        {"method": method, "order": order, "seed": seed, "task": task}
        for method, order, seed in product(settings.methods, chosen, seeds)
        for task in chosen[order]
    ]
    path = "metrics/sequence/{method}/{order}/{seed}/{task}.json"
    needs = ("rows", "place", "kept_bytes", "model_bytes")
    records = Records("continual", "sequence", path, cells, needs=needs)

    def of_these_tasks(cell: Cell, record: Row) -> Row:
        if record.get("tasks") != chosen[cell["order"]]:
            file, order = records.file(cell), cell["order"]
            raise DataError(f"{file}: is about other tasks than order.{order}; {records.made_by(cell)}")
        return record

    def tested(cell: Cell, record: Row) -> Iterable[Row]:
        place, length = of_these_tasks(cell, record)["place"], len(chosen[cell["order"]])
        return [{**row, **cell, "place": place, "length": length} for row in record["rows"]]

    def kept(cell: Cell, record: Row) -> Iterable[Row]:
        region = {name: record.get(name) for name in ("region", "own")}
        return [{**cell, "place": record["place"], **record["kept_bytes"], "model": record["model_bytes"], **region}]

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


def report(data: Sequences) -> Report:
    """Tables, and which of the paper's claims hold."""
    sizes = (counted(len(data.orders), "order"), counted(len(data.seeds), "seed"), counted(len(data.methods), "method"))
    if not data.orders:
        return Report("Continual learning", ", ".join(sizes), [], [OFF], [])
    tables = [last_step_table(data, order).text() for order in data.orders]
    if not any({*_paper()["FT"]} & {*tasks} for tasks in data.orders.values()):
        tables.append(paper_table())
    tables += [measure_table(data).text(), memory_table(data).text()]
    return Report("Continual learning", ", ".join(sizes), tables, [], claims(data))


def _paper() -> dict[str, dict[str, tuple[float, float]]]:
    return published(PAPER)["table4"]


# --- Tables ----------------------------------------------------------------------------------------------------


def last_step_table(data: Sequences, order: str) -> Table:
    """Table 4: accuracy on every task after the last one was learned, the paper's values below ours."""
    tasks, last = data.orders[order], data.last(order)
    models = {variant: data.alone(variant, order) for variant in (PRETRAINED, FINETUNED)}
    models |= {method: last[last.method == method] for method in data.methods}
    columns = [share(task, lambda rows, task=task: rows[rows.task == task].accuracy, task) for task in tasks]
    columns.append(share("mean", lambda rows: rows.groupby("seed").accuracy.mean()))
    lines = [_line(model, rows, order) for model, rows in models.items()]
    tested = bounds([f"{rows:,}" for rows in sorted({int(last.n.min()), int(last.n.max())})])
    notes = [
        f"tasks in the order in which they were learned: {', '.join(tasks)}; accuracy in % after the last one",
        f"mean (standard deviation over seeds), n = {last.groupby('method').seed.nunique().max()} a row; "
        f"on {tested} test rows a task",
        "FT: a model of its own for each task, at the cap of finetune.max_steps; no method of a sequence",
        "naive is the paper's ContinualFT, grafting its GraftingContinual",
    ]
    if {*tasks} & {*_paper()["FT"]}:
        notes.append(
            "paper: RoBERTa-base in prompt mode, 4096-shot, QNLI then AG News then SST-2; no target for others"
        )
    return Table(f"Table 4: after the last task, order {order}", ["method"], columns, lines, notes, stored=tasks)


def _line(model: str, rows: pd.DataFrame, order: str) -> Line:
    theirs = PAPER_NAMES.get(model, "")
    return Line(
        theirs if model == FINETUNED else model,
        rows,
        (order, model),
        paper=_paper().get(theirs),
        source=f"  paper: {theirs}",
    )


def paper_table() -> document.Table:
    """The paper's own table 4, where none of its tasks is among ours."""
    rows = [
        document.Row("paper", [f"  paper: {name}", *(spread(*value) for value in values.values()), ""])
        for name, values in _paper().items()
    ]
    note = "RoBERTa-base in prompt mode, 4096-shot, tasks in this order; accuracy in %; none of our orders has one of these"
    return document.Table("Table 4 of the paper", ["method", *_paper()["FT"], "mean"], rows, [note])


def _of_method(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    return frame[frame.method == method]


def _in_points(values: pd.Series) -> str:
    mean = mean_of(values)
    return points(mean.mean) + (f" ({points(mean.sd).lstrip('+')})" if mean.sd is not None else "")


def measure_table(data: Sequences) -> Table:
    """Average accuracy, forgetting and backward transfer of every method, over orders and seeds."""
    columns = [
        Column("n", lambda rows: str(len(rows)), str),
        share("average accuracy at the end", "average"),
        share("average when just learned", "learned"),
        Column("forgetting", "forgetting", _in_points, "forgetting"),
        Column("backward transfer", "backward_transfer", _in_points, "backward_transfer"),
    ]
    lines = [Line(method, _of_method(data.measure, method), method) for method in data.methods]
    notes = [
        "mean (standard deviation over orders and seeds); n: sequences, one for each order and seed",
        "accuracies in %; forgetting and backward transfer in percentage points, over all tasks but the last",
        "forgetting: best accuracy since a task was learned, before the last step - accuracy at the end (Chaudhry et al.)",
        "backward transfer: accuracy at the end - accuracy when just learned (Lopez-Paz and Ranzato)",
    ]
    return Table("Over all orders and seeds", ["method"], columns, lines, notes, stored=[*MEASURES])


@dataclass(frozen=True)
class Kept:
    """Bytes kept beside one model of `whole` bytes: after the first task, after the last, per task."""

    first: float
    last: float
    each: float
    whole: float
    share: str

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Kept":
        """The means over the sequences of one method."""
        last = at_the_end(rows)
        each, whole = (last["skill"] / last.place).mean(), rows.model.max()
        percent = 100 * each / whole
        share = f"{percent:.1f} %" if percent >= LEAST_SHOWN else f"{percent:.2g} %"
        return cls(rows[rows.place == 1]["skill"].mean(), last["skill"].mean(), each, whole, share)


def at_the_end(memory: pd.DataFrame) -> pd.DataFrame:
    """Rows after the last task of each sequence."""
    return memory.loc[memory.groupby(["order", "seed"]).place.idxmax()]


def memory_table(data: Sequences) -> Table:
    """Bytes to be kept beside one model."""
    sizes = data.memory.drop_duplicates(TASK)
    whole, tasks = sizes.model.max(), sizes.groupby(["order", "seed"]).task.nunique().mean()
    last = at_the_end(sizes)
    lines = [Line(method, Kept.of(_of_method(data.memory, method))) for method in data.methods]
    lines.append(Line("a model for each task", Kept(whole, tasks * whole, whole, whole, "100.0 %"), kind="average"))
    columns = [
        Column("after the first task", lambda kept: kept.first, size),
        Column("after the last", lambda kept: kept.last, size),
        Column("per task", lambda kept: kept.each, size),
        Column("of a model, per task", lambda kept: kept.share, str),
    ]
    notes = [
        "bytes kept beside one model of "
        f"{size(whole)}, means over orders and seeds; per task: after the last step, over the number of tasks",
        f"without the heads of standard mode, which every method keeps ({size(float((last['head'] / last.place).mean()))} a task)",
        "grafting: index and value of a task's own parameters, 4 bytes each; it goes back to the pretrained model",
        "replay: stored rows as text; ewc: Fisher information and anchor, of all tasks together",
        *_taken(data),
    ]
    return Table("Memory", ["method"], columns, lines, notes)


def size(count: float) -> str:
    """Bytes in the largest unit that leaves 1 or more of it: "3.1 MiB"."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def _taken(data: Sequences) -> list[str]:
    """Share of later regions that earlier tasks had taken."""
    rows = data.memory[(data.memory.place > 1) & data.memory.own.notna()]
    if rows.empty:
        return []
    shares = 1 - rows.own.astype(float) / rows.region.astype(float)
    return [
        f"grafting: of the region of a task after the first, {100 * shares.mean():.1f} % were taken by earlier tasks"
    ]


# --- Numbers and claims ----------------------------------------------------------------------------------------


def numbers(data: Sequences) -> dict[str, Any]:
    """The numbers for `dvc metrics`: nested dicts of n, mean and sd; empty where the stage is off.

    measure    method -> average, learned, forgetting, backward_transfer -> n, mean, sd (over orders and seeds)
    order      order -> method -> task -> n, mean, sd of its accuracy after the last task (over seeds)
    alone      order -> task -> the same of its own fine-tuned model
    difference grafting-naive -> the same of the paired difference of their averages, and its 95 % interval
    memory     method -> bytes kept after the last task, beside one model and heads
    unchanged  method -> share of later tests with the same logits as right after a task's own step
    """
    if not data.orders:
        return {}
    by_order = {order: last_step_table(data, order).numbers()[order] for order in data.orders}
    difference = averages(data, GRAFTING, "naive")
    return {
        "measure": measure_table(data).numbers(),
        "order": {order: {method: models[method] for method in data.methods} for order, models in by_order.items()},
        "alone": {order: models[FINETUNED] for order, models in by_order.items()},
        "difference": {"grafting-naive": numbers_of(difference)} if difference.n else {},
        "memory": {name: numbers_of(at_the_end(_of_method(data.memory, name))["skill"]) for name in data.methods},
        "unchanged": {
            name: numbers_of(mean_of(data.later(name).unchanged.astype(float)).mean) for name in data.methods
        },
    }


def claims(data: Sequences) -> list[document.Claim]:
    """Those of claims.yaml that the methods which ran can tell about."""
    return judge(read_statements(CLAIMS), CLAIM_MEASURES, data)


def unchanged(data: Sequences) -> list[Finding]:
    """An answer: grafting's logits on earlier tasks stay the same, by what was predicted and not by averages."""
    if GRAFTING not in data.methods:
        return []
    same = {method: data.later(method).unchanged.astype(bool) for method in data.methods}
    others = [f"{name} in {values.sum()} of {len(values)}" for name, values in same.items() if name != GRAFTING]
    fields = {"same": same[GRAFTING].sum(), "tests": counted(len(same[GRAFTING]), "later test")}
    return [
        Finding(
            bool(same[GRAFTING].all()),
            {**fields, "others": "".join(f"; {text}" for text in [", ".join(others)] if text)},
        )
    ]


def _accuracies(data: Sequences, method: str, at: str, earlier: bool) -> pd.Series:
    """Accuracy of each (order, seed, task) right after the task (at="place") or at the end ("length")."""
    rows = _of_method(data.steps(), method)
    rows = rows[rows.place < rows.length] if earlier else rows
    return rows[rows.step == rows[at]].set_index(TASK).accuracy


def earlier_loss(data: Sequences, method: str) -> Difference:
    """Accuracy right after a task less that at the end, of all tasks but the last."""
    return paired(*(_accuracies(data, method, at, True) for at in ("place", "length")))


def earlier_tasks(data: Sequences, first: str, second: str) -> Difference:
    """Difference of two methods' accuracies at the end, of all tasks but the last."""
    return paired(*(_accuracies(data, method, "length", True) for method in (first, second)))


def just_learned(data: Sequences, first: str, second: str) -> Difference:
    """Difference of two methods' accuracies right after each task."""
    return paired(*(_accuracies(data, method, "place", False) for method in (first, second)))


def averages(data: Sequences, first: str, second: str) -> Difference:
    """Difference of two methods' average accuracies at the end, over orders and seeds."""
    return paired(*(_of_method(data.measure, name).set_index(["order", "seed"]).average for name in (first, second)))


def memory(data: Sequences) -> list[Finding]:
    """The largest share of a model that grafting keeps for a task."""
    rows = _of_method(data.memory, GRAFTING)
    if rows.empty:
        return []
    last = at_the_end(rows)
    largest = float((last["skill"] / last.place / last.model).max())
    return [Finding(largest, {"share": largest})]


CLAIM_MEASURES = {
    "unchanged": unchanged,
    "earlier_loss": earlier_loss,
    "earlier_tasks": earlier_tasks,
    "just_learned": just_learned,
    "averages": averages,
    "memory": memory,
}
