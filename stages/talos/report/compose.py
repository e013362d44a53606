"""The whole report of task arithmetic."""

from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.talos.report.collecting import Talos
from stages.talos.report.findings import claims
from stages.talos.report.tables import tables


def write_report(talos: Talos) -> Report:
    """Tables, which stages are off, and which effects show."""
    size = f"{counted(len(talos.tasks), 'task')}, {counted(len(talos.seeds), 'seed')}"
    facts = [f"off, so without tables and figures: {', '.join(talos.off)}"] if talos.off else []
    return Report("Task arithmetic with localized vectors", size, tables(talos), facts, claims(talos))
