"""The whole report of multi-task learning."""

from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.multitask.report.collecting import Multitask
from stages.multitask.report.findings import claims
from stages.multitask.report.tables import tables


def write_report(found: Multitask) -> Report:
    """Tables, what is off, and which effects of the paper show."""
    models = counted(len(found.levels[["paradigm", "seed"]].drop_duplicates()), "joint model")
    size = f"{models} of {counted(len(found.tasks), 'task')}: {', '.join(found.tasks)}"
    groups = [f"similar, as the group {name} has them: {', '.join(tasks)}" for name, tasks in found.groups.items()]
    return Report("Multi-task learning", size, tables(found), [*off_lines(found), *groups], claims(found))


def off_lines(found: Multitask) -> list[str]:
    """Which stages are off, so that there is nothing of them."""
    if found.levels.empty:
        return ["off, so without tables and figures: joint, and all that follow from it"]
    return ["off, so without tables and figures: skill, transfer"] if found.gains.empty else []
