"""Grafts of every size beside parameter-efficient methods, laid out like tables 6 and 7 of the paper."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import percent, small_percent, spread
from stages.lib.report.stats import mean_of
from stages.study.report import choosing
from stages.study.report.choosing import LEARNED
from stages.study.report.collecting import Study
from stages.study.report.paper import table6, table7
from stages.study.report.region_tables import PAPER, VALUES

MOST_TASKS = 4
FAMILIES = {"lora": "LoRA", "houlsby": "Houlsby et al.", "pfeiffer": "Pfeiffer et al.", "graft": "Grafting"}


@dataclass(frozen=True)
class Line:
    """One method at one size: its rows on the own test set and on others, and where the paper has it."""

    family: str
    size: float
    label: str
    own: pd.DataFrame
    ood: pd.DataFrame


def method_lines(study: Study) -> list[Line]:
    """Every parameter-efficient method, the learned grafts by size, and the fine-tuned model as the graft of 100 %."""
    lines = []
    for method in sorted(study.frames["peft"].method.unique(), key=_place):
        family, size = _family_and_size(method)
        own, ood = choosing.peft(study, method), choosing.peft(study, method, "ood")
        lines.append(Line(family, size, f"{size:g}{_trained_share(own)}", own, ood))
    for size in choosing.sparsities(choosing.sweep(study, LEARNED)):
        grafts = (choosing.sweep(study, LEARNED, size, where) for where in ("id", "ood"))
        lines.append(Line("graft", size, small_percent(size), *grafts))
    whole = (choosing.anchor(study, FINETUNED, where) for where in ("id", "ood"))
    return [*lines, Line("graft", 1, "100 %", *whole)]


def calibration_tables(study: Study) -> list[Table]:
    """Score and calibration error (table 6), a table for every four tasks, the last with the average over all."""
    groups = [study.tasks[start : start + MOST_TASKS] for start in range(0, len(study.tasks), MOST_TASKS)]
    lines = method_lines(study)
    return [_calibration_table(study, lines, tasks, last=tasks is groups[-1]) for tasks in groups]


def transfer_tables(study: Study) -> list[Table]:
    """Scores in and out of distribution (table 7), a table for each trained task that has other test sets."""
    lines = method_lines(study)
    sets: dict[str, list[str]] = {}
    for task, test_set in choosing.pairs(study):
        sets.setdefault(task, []).append(test_set)
    tables = [_transfer_table(study, lines, task, tests) for task, tests in sets.items()]
    return [*tables, _transfer_average(lines, [*sets])] if len(sets) > 1 else tables


def _calibration_table(study: Study, lines: list[Line], tasks: list[str], last: bool) -> Table:
    columns = [*tasks, *(["average"] if last else [])]

    def ours(line: Line) -> list[str]:
        frames = [line.own if name == "average" else line.own[line.own.task == name] for name in columns]
        return [_text(frame, measure) for frame in frames for measure in ("score", "ece")]

    def theirs(line: Line) -> list[str]:
        values = table6(line.family, line.size)
        known = {*values} - {"average"} == {*study.tasks}  # otherwise the two averages would be over different tasks
        values = {name: value for name, value in values.items() if name != "average" or known}
        return [_cell(values.get(name, {}).get(measure)) for name in columns for measure in ("score", "ece")]

    names = [choosing.named(study, name) if name != "average" else name for name in columns]
    header = ["method", "size", "n", *(f"{name} {measure}" for name in names for measure in ("score", "ECE"))]
    return Table(
        f"Table 6: score and calibration error of {', '.join(tasks)}", header, _rows(lines, ours, theirs), _notes()
    )


def _transfer_table(study: Study, lines: list[Line], task: str, tests: list[str]) -> Table:
    def ours(line: Line) -> list[str]:
        frames = [line.ood[(line.ood.task == task) & (line.ood.test_set == test)] for test in tests]
        return [_text(frame, "score") for frame in (line.own[line.own.task == task], *frames)]

    def theirs(line: Line) -> list[str]:
        values = table7(line.family, line.size).get(task, {})
        return [_cell(values.get(test)) for test in (task, *tests)]

    header = ["method", "size", "n", choosing.named(study, task), *(f"{task} -> {test}" for test in tests)]
    title = f"Table 7: trained on {task}, tested on other data sets"
    chosen = [replace(line, own=line.own[line.own.task == task]) for line in lines]
    return Table(title, header, _rows([line for line in chosen if len(line.own)], ours, theirs), _notes())


def _transfer_average(lines: list[Line], tasks: list[str]) -> Table:
    def ours(line: Line) -> list[str]:
        return [_text(frame[frame.task.isin(tasks)], "score") for frame in (line.own, line.ood)]

    def theirs(line: Line) -> list[str]:
        values = table7(line.family, line.size)
        known = {*values} - {"average"} == {*tasks}
        return [_cell(values["average"][name] if known else None) for name in ("id", "ood")]

    header = ["method", "size", "n", "average ID", "average OOD"]
    lines = [replace(line, own=line.own[line.own.task.isin(tasks)]) for line in lines]
    return Table(f"Table 7: averages over {', '.join(tasks)}", header, _rows(lines, ours, theirs), _notes())


def _rows(lines: list[Line], ours: Callable[[Line], list[str]], theirs: Callable[[Line], list[str]]) -> list[Row]:
    rows, family = [], None
    for line in lines:
        values = ours(line)
        if any(values):
            first, family = ("" if line.family == family else FAMILIES.get(line.family, line.family)), line.family
            rows.append(Row("ours", [first, line.label, str(len(choosing.by_cell(line.own))), *values]))
            paper = theirs(line)
            rows += [Row("paper", ["  paper", "", "", *paper])] if any(paper) else []
    return rows


def _family_and_size(method: str) -> tuple[str, float]:
    family, _, size = method.rpartition("_")
    return (family, float(size)) if size.isdecimal() else (method, 0.0)


def _place(method: str) -> tuple[int, str, float]:
    """In the order of the paper, other methods after its own."""
    family, size = _family_and_size(method)
    known = [*FAMILIES]
    return (known.index(family) if family in known else len(known), family, size)


def _trained_share(rows: pd.DataFrame) -> str:
    shares = (rows.trained / rows.model_parameters).dropna()
    return f" ({small_percent(shares.mean())})" if len(shares) else ""


def _text(frame: pd.DataFrame, measure: str) -> str:
    return mean_of(choosing.by_cell(frame, measure)).text()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return spread(*value) if isinstance(value, tuple) else percent(value)


def _notes() -> list[str]:
    size = (
        "size: rank or bottleneck (share of the model's parameters trained), of a graft its sparsity; 100 %: fine-tuned"
    )
    return [VALUES, size, PAPER]
