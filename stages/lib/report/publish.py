"""Where a pipeline's report goes: tables, numbers and figures into files, the tables onto the terminal too."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from .. import paths
from ..io import write_json, write_text
from ..settings import Params
from .differences import plain
from .document import Report, write_report
from .markdown import to_markdown
from .stats import clean
from .style import save_all
from .terminal import to_terminal

DECIMALS = 4  # of what git keeps, so that another machine writes the same; of small numbers as many digits

# writes into the pipeline's folder of plots
Draw = Callable[[Path], object]


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


def figures(makers: Mapping[str, Callable[[Any], Any]], data: Any) -> Draw:
    """Writes <name>.png for each maker that gives a figure of the data."""
    return lambda folder: save_all(makers, data, folder)


def show(report: Report) -> None:
    """Print a report."""
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    Console(highlight=False).print(to_terminal(report))
