"""The whole report, from the cells and the summary made of them."""

from typing import Any

from stages.lib.report.document import Report
from stages.lib.report.format import counted, small_percent
from stages.report.cells import Cells
from stages.report.paper import shots_for
from stages.report.tables import ood_table, score_table
from stages.report.verdict import judge


def write_report(
    cells: Cells, summary: dict[str, Any], retained_target: float, ece_target: float, leaks: str
) -> Report:
    """The report; `leaks` is "drop" or "keep", what was done with leaked test texts."""
    shots = shots_for(int(cells.masks.k.iloc[0]))
    tables = [score_table(cells.tasks, summary, shots)]
    if cells.leaks:
        tables.append(ood_table(cells.tasks, summary, leaks))
    claims = judge(summary, retained_target, ece_target)
    return Report(
        "Grafted models against fine-tuned models", setting(cells), tables, mask_facts(summary["mask"]), claims
    )


def setting(cells: Cells) -> str:
    """What the numbers are about, in one line."""
    first = cells.masks.iloc[0]
    size = f"{counted(len(cells.tasks), 'task')}, {counted(len(cells.seeds), 'seed')}"
    return f"{first.model}, {first['mode']} fine-tuning, {first.k} examples per class, {size}"


def mask_facts(masks: dict[str, dict[str, Any]]) -> list[str]:
    """The size of the masks with both denominators, one line for each size that occurs."""
    tasks_of: dict[str, list[str]] = {}
    for task, size in masks.items():
        tasks_of.setdefault(_size(size), []).append(task)
    if len(tasks_of) == 1:
        return [f"Mask: {size}" for size in tasks_of]
    return [f"Mask of {', '.join(tasks)}: {size}" for size, tasks in tasks_of.items()]


def _size(mask: dict[str, Any]) -> str:
    return (
        f"{round(mask['selected']):,} of {mask['graftable']:,} graftable parameters ({small_percent(mask['sparsity'])}), "
        f"{small_percent(mask['sparsity_of_model'])} of the model's {mask['model_parameters']:,}"
    )
