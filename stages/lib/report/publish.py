"""Where a pipeline's report goes: tables, numbers and figures into files, the tables onto the terminal too."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from stages.lib import paths
from stages.lib.io import write_json, write_text
from stages.lib.report.document import Report, write_report
from stages.lib.report.markdown import to_markdown
from stages.lib.report.terminal import to_terminal


def publish(pipeline: str, report: Report, numbers: dict[str, Any], *draw: Callable[[Path], object]) -> None:
    """Write metrics/<pipeline>.md, .json and .report.json, let each of `draw` write into plots/<pipeline>, print the report."""
    plots = paths.report_plots(pipeline)
    plots.mkdir(parents=True, exist_ok=True)
    for write in draw:
        write(plots)
    write_text(paths.report(pipeline).with_suffix(".md"), to_markdown(report))
    write_json(paths.report(pipeline), numbers)
    write_report(paths.report_document(pipeline), report)
    show(report)


def show(report: Report) -> None:
    """Print a report."""
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    console = Console(highlight=False)
    console.print(to_terminal(report, console))
