"""Tables of the report on continual learning."""

from collections.abc import Iterator

import pandas as pd

from stages.continual.report import paper
from stages.continual.report.collecting import MEASURES, Sequences
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import points, spread
from stages.lib.report.stats import mean_of

# Our methods by the paper's names.
PAPER_NAMES = {FINETUNED: "FT", "naive": "ContinualFT", "grafting": "GraftingContinual"}
TITLES = {
    "average": "average accuracy at the end",
    "learned": "average when just learned",
    "forgetting": "forgetting",
    "backward_transfer": "backward transfer",
}
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def tables(found: Sequences) -> list[Table]:
    """Table 4 for every order, what holds over orders, memory, and the paper's own table where no order has its tasks."""
    if not found.orders:
        return []
    made = [last_step_table(found, order) for order in found.orders]
    if not any({*paper.table4_tasks()} & {*tasks} for tasks in found.orders.values()):
        made.append(paper_table())
    return [*made, measure_table(found), memory_table(found)]


def last_step_table(found: Sequences, order: str) -> Table:
    """Table 4: accuracy on every task after the last one was learned, the paper's values below ours."""
    tasks = found.orders[order]
    last = found.steps(order)
    last = last[last.step == last.length]
    alone = {variant: found.alone(variant, order) for variant in (PRETRAINED, FINETUNED)}
    models = {**alone, **{method: last[last.method == method] for method in found.methods}}
    rows = [row for model, values in models.items() for row in _model_rows(model, values, tasks)]
    notes = [
        f"tasks in the order in which they were learned: {', '.join(tasks)}; accuracy in % after the last one",
        f"mean (standard deviation over seeds), n = {_seeds(last)} a row; on {_rows_tested(last)} test rows a task",
        "FT: a model of its own for each task, at the cap of finetune.max_steps; no method of a sequence",
        "naive is the paper's ContinualFT, grafting its GraftingContinual",
    ]
    if any(row.kind == "paper" for row in rows):
        notes.append(
            "paper: RoBERTa-base in prompt mode, 4096-shot, QNLI then AG News then SST-2; no target for others"
        )
    return Table(f"Table 4: after the last task, order {order}", ["method", *tasks, "mean"], rows, notes)


def paper_table() -> Table:
    """The paper's own table 4, where none of its tasks is among ours."""
    tasks = paper.table4_tasks()
    rows = [row for model in PAPER_NAMES for row in _paper_rows(model, tasks)]
    note = "RoBERTa-base in prompt mode, 4096-shot, tasks in this order; accuracy in %; none of our orders has one of these"
    return Table("Table 4 of the paper", ["method", *tasks, "mean"], rows, [note])


def measure_table(found: Sequences) -> Table:
    """Average accuracy, forgetting and backward transfer of every method, over orders and seeds."""
    rows = []
    for method in found.methods:
        values = found.measure[found.measure.method == method]
        rows.append(Row("ours", [method, str(len(values)), *(_measure(values[name], name) for name in MEASURES)]))
    notes = [
        "mean (standard deviation over orders and seeds); n: sequences, one for each order and seed",
        "accuracies in %; forgetting and backward transfer in percentage points, over all tasks but the last",
        "forgetting: best accuracy since a task was learned, before the last step - accuracy at the end (Chaudhry et al.)",
        "backward transfer: accuracy at the end - accuracy when just learned (Lopez-Paz and Ranzato)",
    ]
    return Table("Over all orders and seeds", ["method", "n", *TITLES.values()], rows, notes)


def memory_table(found: Sequences) -> Table:
    """What has to be kept beside one model."""
    rows = [Row("ours", [method, *(_memory(found.memory[found.memory.method == method]))]) for method in found.methods]
    sizes = found.memory.drop_duplicates(["order", "seed", "task"])
    whole = sizes.model.max()
    tasks = sizes.groupby(["order", "seed"]).task.nunique().mean()
    rows.append(Row("average", ["a model for each task", size(whole), size(tasks * whole), size(whole), "100.0 %"]))
    notes = [
        "bytes kept beside one model of "
        f"{size(whole)}, means over orders and seeds; per task: after the last step, over the number of tasks",
        f"without the heads of standard mode, which every method keeps ({size(_heads(sizes))} a task)",
        "grafting: index and value of a task's own parameters, 4 bytes each; it goes back to the pretrained model",
        "replay: stored rows as text; ewc: Fisher information and anchor, of all tasks together",
    ]
    shares = _taken(found)
    if shares:
        notes.append(shares)
    header = ["method", "after the first task", "after the last", "per task", "of a model, per task"]
    return Table("Memory", header, rows, notes)


def size(count: float) -> str:
    """Bytes in the largest unit that leaves 1 or more of it: "3.1 MiB"."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def _model_rows(model: str, values: pd.DataFrame, tasks: list[str]) -> Iterator[Row]:
    cells = [mean_of(values[values.task == task].accuracy).text() for task in tasks]
    average = mean_of(values.groupby("seed").accuracy.mean()).text()
    yield Row("ours", [PAPER_NAMES[FINETUNED] if model == FINETUNED else model, *cells, average])
    yield from _paper_rows(model, tasks)


def _paper_rows(model: str, tasks: list[str]) -> Iterator[Row]:
    values = paper.table4(PAPER_NAMES[model]) if model in PAPER_NAMES else {}
    cells = [spread(*values[task]) if task in values else "" for task in tasks]
    if any(cells):
        yield Row("paper", [f"  paper: {PAPER_NAMES[model]}", *cells, ""])


def _measure(values: pd.Series, name: str) -> str:
    mean = mean_of(values)
    if name not in ("forgetting", "backward_transfer"):
        return mean.text()
    return points(mean.mean) + (f" ({points(mean.sd).lstrip('+')})" if mean.sd is not None else "")


def _memory(rows: pd.DataFrame) -> list[str]:
    first = rows[rows.place == 1]["skill"].mean()
    last = rows.loc[rows.groupby(["order", "seed"]).place.idxmax()]
    each = (last["skill"] / last.place).mean()
    share = 100 * each / rows.model.max()
    return [size(first), size(last["skill"].mean()), size(each), f"{share:.1f} %" if share >= 0.1 else f"{share:.2g} %"]


def _heads(rows: pd.DataFrame) -> float:
    last = rows.loc[rows.groupby(["order", "seed"]).place.idxmax()]
    return float((last["head"] / last.place).mean())


def _taken(found: Sequences) -> str:
    """How much of later regions was taken already."""
    rows = found.memory[(found.memory.place > 1) & found.memory.own.notna()]
    if rows.empty:
        return ""
    shares = 1 - rows.own.astype(float) / rows.region.astype(float)
    return f"grafting: of the region of a task after the first, {100 * shares.mean():.1f} % were taken by earlier tasks"


def _seeds(rows: pd.DataFrame) -> int:
    return int(rows.groupby("method").seed.nunique().max())


def _rows_tested(rows: pd.DataFrame) -> str:
    least, most = int(rows.n.min()), int(rows.n.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
