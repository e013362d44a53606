"""The whole report of the study."""

from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.study.report.collecting import Study
from stages.study.report.findings import claims
from stages.study.report.tables import off_line, tables


def write_report(study: Study) -> Report:
    """Tables, which stages are off, and which effects of the paper show."""
    size = f"{counted(len(study.tasks), 'task')}, {counted(len(study.seeds), 'seed')}"
    facts = [line for line in (off_line(study),) if line]
    return Report("The single-task study", size, tables(study), facts, claims(study))
