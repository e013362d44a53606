"""Where a pipeline's report goes: tables, numbers and figures into files, as markdown too, and onto the terminal."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from stages.workflow.core import paths

from ..io import write_json, write_text
from ..settings import Params
from .differences import plain
from .document import HEADING, HOW_JUDGED, Claim, Report, Table, Verdict, write_report
from .stats import clean
from .style import Data, save_all

DECIMALS = 4  # of what git keeps, so that another machine writes the same; of small numbers as many digits

# writes into the pipeline's folder of plots
Draw = Callable[[Path], object]
STYLES = {"ours": "", "paper": "dim", "average": "bold", "group": "italic"}
VERDICT_STYLES = {Verdict.HOLDS: "bold green", Verdict.FAILS: "bold red"}


def publish(
    pipeline: str, report: Report, headline: dict[str, Any], details: dict[str, Any], *draw: Draw, settings: Params
) -> None:
    """Write metrics/<pipeline>.md, .json, .details.json and .report.json, let `draw` write into plots/<pipeline>, print the report.

    The headline is what `dvc metrics diff` shows: a few numbers at 4 decimals.  Undefined numbers and empty parts are left out.
    `settings` are all that the stage asked for, so all that its numbers depend on; they are stored with the report.
    """
    plots = paths.report_plots(pipeline)
    plots.mkdir(parents=True, exist_ok=True)
    for write in draw:
        write(plots)
    write_text(paths.report(pipeline).with_suffix(".md"), to_markdown(report))
    write_json(paths.report(pipeline), clean(headline, DECIMALS))
    write_json(paths.report_details(pipeline), clean({name: part for name, part in details.items() if part}))
    write_report(paths.report_document(pipeline), replace(report, settings=plain(settings)))
    show(report)


def plot_data(frames: Mapping[str, pd.DataFrame], empty: bool = False) -> Draw:
    """Writes <name>.csv for each frame that has rows (or all, with `empty`), rounded but for sizes, which are settings."""

    def write(folder: Path) -> None:
        for name, frame in frames.items():
            if len(frame) or empty:
                numbers = {*frame.select_dtypes("floating")} - {"sparsity"}
                rounded = frame.assign(**{column: frame[column].map(_rounded) for column in frame if column in numbers})
                write_text(folder / f"{name}.csv", rounded.to_csv(index=False, lineterminator="\n"))

    return write


def _rounded(value: float) -> float:
    """At four decimals, a number below 0.1 at four digits; 0.0 for -0.0."""
    digits = DECIMALS - 1 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else DECIMALS
    return round(value, max(DECIMALS, digits)) + 0.0


def figures(makers: Mapping[str, Callable[[Data], Figure | None]], data: Data) -> Draw:
    """Writes <name>.png for each maker that gives a figure of the data."""
    return lambda folder: save_all(makers, data, folder)


def show(report: Report) -> None:
    """Print a report."""
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    Console(highlight=False).print(to_terminal(report))


def to_terminal(report: Report) -> RenderableType:
    """The report for `console.print`, coloured where there are colours; cells are broken into several lines where the console is narrow."""
    parts: list[RenderableType] = ["", Text(report.title, style="bold"), Text(report.setting)]
    for table in report.tables:
        parts += ["", Text(table.title, style="bold"), _drawn(table), "", *map(_indented, table.notes)]
    parts += ["", *map(Text, report.facts)]
    parts += ["", Text(HEADING, style="bold"), Text(HOW_JUDGED)] if report.claims else []
    for claim in report.claims:
        style = VERDICT_STYLES.get(claim.verdict, "bold yellow")
        parts += [Text.assemble((f"{claim.verdict}: ", style), claim.text), _indented(claim.figure)]
        parts += [_indented(f"the paper: {claim.paper}; here: {claim.here}")] if claim.paper else []
        parts += [_indented("not so in: " + ", ".join(claim.exceptions))] if claim.exceptions else []
    return Group(*parts)


def _drawn(table: Table) -> RichTable:
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


def to_markdown(report: Report) -> str:
    """The whole report as one markdown text."""
    parts = [f"# {report.title}", report.setting, *map(_table, report.tables)]
    parts.append("\n".join(f"- {fact}" for fact in report.facts))
    if report.claims:
        parts += [f"## {HEADING}", HOW_JUDGED, "\n".join(map(_claim, report.claims))]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [_line(table.header), _line([":--", *["--:"] * (len(table.header) - 1)])]
    for row in table.rows:
        cells = [*row.cells, *[""] * (len(table.header) - len(row.cells))]
        lines.append(_line([_emphasis(row.kind, cell.strip()) for cell in cells]))
    notes = "\n".join(f"- {_escaped(note)}" for note in table.notes)
    return "\n\n".join([f"## {table.title}", "\n".join(lines), notes])


def _emphasis(kind: str, cell: str) -> str:
    mark = {"ours": "", "paper": "*", "average": "**", "group": "**"}[kind]
    return f"{mark}{_escaped(cell)}{mark}" if cell else ""


def _claim(claim: Claim) -> str:
    lines = [f"- **{claim.verdict}**: {_escaped(claim.text)}: {_escaped(claim.figure)}"]
    if claim.paper:
        lines.append(f"  - the paper: {_escaped(str(claim.paper))}; here: {_escaped(claim.here)}")
    if claim.exceptions:
        lines.append(f"  - not so in: {_escaped(', '.join(claim.exceptions))}")
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Task names may hold underscores, which markdown takes for emphasis."""
    return text.replace("_", "\\_").replace("|", "\\|").replace("->", "→")
