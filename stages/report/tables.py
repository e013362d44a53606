"""The tables of the report, laid out like Table 2 of the paper."""

from statistics import fmean
from typing import Any

from stages.lib.data.tasks import TaskSpec
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, VARIANTS
from stages.lib.report.document import Row, Table
from stages.lib.report.format import MARKED, MARKS, measured, name_of, points, spread
from stages.report.paper import table2, table3

COLUMNS = (
    (FINETUNED, "score"),
    (FINETUNED, "ece"),
    (MOVEMENT_GRAFTED, "score"),
    (MOVEMENT_GRAFTED, "ece"),
    (GRAFTED, "score"),
    (GRAFTED, "ece"),
    (GRAFTED, "agreement"),
    (GRAFTED, "retained"),
)
HEADER = ["task", "FT score", "FT ECE", "move score", "move ECE", "graft score", "graft ECE", "agreement", "retained"]
OOD_HEADER = ["trained -> tested", "n", "pre", "FT", "move", "graft", "graft - FT"]
ABBREVIATIONS = (
    "FT: finetuned; move: movement grafted, of the size of the learned graft; graft: grafted with the learned mask"
)


def score_table(tasks: dict[str, TaskSpec], summary: dict[str, Any], shots: int) -> Table:
    """Score and calibration error of every task, by one and two sentences, with the paper's values where it has the task."""
    groups = {
        "one sentence": [name for name, task in tasks.items() if not task.is_pair],
        "two sentences": [name for name, task in tasks.items() if task.is_pair],
    }
    groups = {title: names for title, names in groups.items() if names}
    rows: list[Row] = []
    for title, names in groups.items():
        if len(groups) > 1:
            rows.append(Row("group", [title]))
        for name in names:
            rows += _task_rows(tasks[name], summary, shots)
        if len(groups) > 1 and len(names) > 1:
            rows += _average_rows("average of these", names, summary, shots)
    rows += _average_rows("average", list(tasks), summary, shots)
    return Table(
        "Test score and calibration error in %: mean (standard deviation over seeds)",
        HEADER,
        rows,
        _notes(tasks, rows, shots),
    )


def _task_rows(task: TaskSpec, summary: dict[str, Any], shots: int) -> list[Row]:
    values = summary["task"][task.name]
    rows = [Row("ours", [name_of(task), *(measured(values[variant], measure) for variant, measure in COLUMNS)])]
    theirs = table2(task.name, shots)
    if theirs:
        pairs = [theirs.get(variant, {}).get(measure) for variant, measure in COLUMNS]
        rows.append(Row("paper", ["  paper", *(spread(*pair) if pair else "" for pair in pairs)]))
    return rows


def _average_rows(title: str, names: list[str], summary: dict[str, Any], shots: int) -> list[Row]:
    def mean(variant: str, measure: str) -> str:
        values = [summary["task"][name][variant].get(f"{measure}_mean") for name in names]
        known = [value for value in values if value is not None]
        return spread(fmean(known) if known else None)

    rows = [Row("average", [title, *(mean(variant, measure) for variant, measure in COLUMNS)])]
    theirs = [table2(name, shots) for name in names]
    if all(theirs):  # otherwise the two averages would be over different tasks
        rows.append(Row("paper", ["  paper", *(_paper_mean(theirs, variant, measure) for variant, measure in COLUMNS)]))
    return rows


def _paper_mean(theirs: list[dict[str, dict[str, Any]]], variant: str, measure: str) -> str:
    pairs = [values.get(variant, {}).get(measure) for values in theirs]
    return spread(fmean(pair[0] for pair in pairs)) if all(pairs) else ""


def _notes(tasks: dict[str, TaskSpec], rows: list[Row], shots: int) -> list[str]:
    notes = [
        ABBREVIATIONS,
        "agreement: share of predictions equal to the fine-tuned model's; retained: graft score / FT score",
    ]
    used = [metric for metric in MARKS if any(task.metric == metric for task in tasks.values())]
    if used:
        notes.append(f"{', '.join(f'{MARKS[metric]} {MARKED[metric]}' for metric in used)}, the others accuracy")
    if any(row.kind == "paper" for row in rows):
        notes.append(
            f"paper: Table 2, {shots}-shot, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %; no target for other settings"
        )
    return notes


def ood_table(tasks: dict[str, TaskSpec], summary: dict[str, Any], leaks: str) -> Table:
    """Scores on data sets that the task was not trained on, and how many of their texts it was trained on after all."""
    rows, notes = [], []
    for task, sets in summary["ood"].items():
        for test_set, values in sets.items():
            rows += _ood_rows(tasks[task], test_set, values)
            notes.append(_leak_note(task, test_set, values["rows"], leaks))
    if any(row.kind == "paper" for row in rows):
        notes.insert(0, "paper: Table 3, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %")
    return Table("Out-of-distribution score in %: mean (standard deviation over seeds)", OOD_HEADER, rows, notes)


def _ood_rows(task: TaskSpec, test_set: str, values: dict[str, Any]) -> list[Row]:
    change = values[GRAFTED]["score_mean"] - values[FINETUNED]["score_mean"]
    scores = [measured(values[variant], "score") for variant in VARIANTS]
    rows = [Row("ours", [f"{name_of(task)} -> {test_set}", f"{values[GRAFTED]['n']:,}", *scores, points(change)])]
    theirs = table3(task.name, test_set)
    if theirs:
        rows.append(Row("paper", ["  paper", "", "", "", "", spread(*theirs), ""]))
    return rows


def _leak_note(task: str, test_set: str, rows: dict[str, int], leaks: str) -> str:
    pair = f"{task} -> {test_set}"
    if "leaked" not in rows:
        return f"{pair}: not known how many test texts are in the training data"
    fate = {"drop": "dropped", "keep": "kept"}[leaks] if rows["leaked"] else "nothing to drop"
    return f"{pair}: {rows['leaked']:,} of {rows['test']:,} test texts are in the training data, {fate}"
