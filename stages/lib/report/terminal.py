"""The report for a terminal: colours where there are any, and no line longer than it is wide."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from stages.lib.report.document import Claim, Report, Row, Table, Verdict

UNLIMITED = 10_000
STYLES = {"ours": "", "paper": "dim", "average": "bold", "group": "italic"}
VERDICT_STYLES = {
    Verdict.HOLDS: "bold green",
    Verdict.FAILS: "bold red",
    Verdict.UNCLEAR: "bold yellow",
    Verdict.OPEN: "bold yellow",
}


def to_terminal(report: Report, console: Console) -> RenderableType:
    """What `console.print` shows; tables are broken into two lines a row where the console is narrow."""
    parts: list[RenderableType] = ["", Text(report.title, style="bold"), Text(report.setting)]
    for table in report.tables:
        parts += [
            "",
            Text(table.title, style="bold"),
            _fitted(table, console),
            "",
            *(_hanging(note) for note in table.notes),
        ]
    parts += ["", *(Text(fact) for fact in report.facts), "", Text("Verdict, on averages over tasks", style="bold")]
    parts += [_hanging(report.how_judged, 0)] if report.how_judged else []
    return Group(*parts, *(line for claim in report.claims for line in _claim(claim)))


def _fitted(table: Table, console: Console) -> RichTable:
    wide = _rich_table(table, narrow=False)
    # asked without a limit, since a measure is cut off at the console's width
    needed = console.measure(wide, options=console.options.update(max_width=UNLIMITED)).maximum
    return wide if needed <= console.width else _rich_table(table, narrow=True)


def _rich_table(table: Table, narrow: bool) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0 if narrow else 1, 0, 0))
    for number, title in enumerate(table.header):
        text = title.replace(" ", "\n") if number and " - " not in title else title
        drawn.add_column(Text(text), justify="right" if number else "left", overflow="fold", vertical="top")
    for row, after in zip(table.rows, [*table.rows[1:], None], strict=True):
        drawn.add_row(*_cells(row, narrow), style=STYLES[row.kind])
        if after and (after.kind == "group" or (after is _last_average(table) and row.kind != "group")):
            drawn.add_section()
    return drawn


def _last_average(table: Table) -> Row | None:
    return next((row for row in reversed(table.rows) if row.kind == "average"), None)


def _cells(row: Row, narrow: bool) -> list[Text]:
    return [Text(cell.replace(" (", "\n(").replace(" -> ", " ->\n") if narrow else cell) for cell in row.cells]


def _claim(claim: Claim) -> list[RenderableType]:
    head = Text.assemble((f"{claim.verdict}: ", VERDICT_STYLES[claim.verdict]), claim.text)
    lines = [_hanging(head, 0), _hanging(claim.figure)]
    if claim.exceptions:
        lines.append(_hanging("not so in: " + ", ".join(claim.exceptions)))
    return lines


def _hanging(text: str | Text, indent: int = 2) -> RenderableType:
    return Padding(Text(text) if isinstance(text, str) else text, (0, 0, 0, indent), expand=False)
