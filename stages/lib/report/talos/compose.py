"""The whole report of task arithmetic."""

from stages.lib.report.document import Report
from stages.lib.report.talos.collecting import Talos
from stages.lib.report.talos.findings import claims
from stages.lib.report.talos.tables import tables
from stages.lib.report.wording import counted


def write_report(talos: Talos) -> Report:
    """Tables, which stages are off, and which effects show."""
    size = f"{counted(len(talos.tasks), 'task')}, {counted(len(talos.seeds), 'seed')}"
    facts = [f"off, so without tables and figures: {', '.join(talos.off)}"] if talos.off else []
    return Report("Task arithmetic with localized vectors", size, tables(talos), facts, claims(talos))
