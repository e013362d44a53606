"""The report for a terminal: colours where there are any, and no line longer than it is wide."""

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from .document import HEADING, Report, Table, Verdict

STYLES = {"ours": "", "paper": "dim", "average": "bold", "group": "italic"}
VERDICT_STYLES = {Verdict.HOLDS: "bold green", Verdict.FAILS: "bold red"}


def to_terminal(report: Report) -> RenderableType:
    """Something for `console.print`; cells are broken into several lines where the console is narrow."""
    parts: list[RenderableType] = ["", Text(report.title, style="bold"), Text(report.setting)]
    for table in report.tables:
        parts += ["", Text(table.title, style="bold"), _table(table), "", *map(_indented, table.notes)]
    parts += ["", *map(Text, report.facts)]
    parts += ["", Text(HEADING, style="bold"), Text(report.how_judged)] if report.claims else []
    for claim in report.claims:
        style = VERDICT_STYLES.get(claim.verdict, "bold yellow")
        parts += [Text.assemble((f"{claim.verdict}: ", style), claim.text), _indented(claim.figure)]
        parts += [_indented(f"the paper: {claim.paper}; here: {claim.here}")] if claim.paper else []
        parts += [_indented("not so in: " + ", ".join(claim.exceptions))] if claim.exceptions else []
    return Group(*parts)


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for number, title in enumerate(table.header):
        drawn.add_column(Text(title), justify="right" if number else "left", overflow="fold", vertical="top")
    for number, row in enumerate(table.rows):
        if row.kind == "group" and number:
            drawn.add_section()
        drawn.add_row(*map(Text, row.cells), style=STYLES[row.kind])
    return drawn


def _indented(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2), expand=False)
