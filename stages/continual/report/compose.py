"""The whole report on continual learning."""

from stages.continual.report.collecting import Sequences
from stages.continual.report.findings import claims
from stages.continual.report.tables import tables
from stages.lib.report.document import Report
from stages.lib.report.format import counted

OFF = "off: no method, no order or no seed is set, so there is nothing to report"


def write_report(found: Sequences) -> Report:
    """Tables, and which of the paper's claims hold."""
    sizes = (
        counted(len(found.orders), "order"),
        counted(len(found.seeds), "seed"),
        counted(len(found.methods), "method"),
    )
    facts = [] if found.orders else [OFF]
    return Report("Continual learning", ", ".join(sizes), tables(found), facts, claims(found) if found.orders else [])
