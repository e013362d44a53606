"""Tidy tables on continual learning, as CSV for `dvc plots`."""

from pathlib import Path

from stages.continual.report.collecting import Sequences
from stages.lib.io import write_text

DECIMALS = 6


def plot_data(found: Sequences, folder: Path) -> list[Path]:
    """Write accuracy.csv, measure.csv and memory.csv, those that have rows; gives their paths."""
    tables = {"accuracy": found.accuracy, "measure": found.measure, "memory": found.memory}
    written = []
    for name, table in tables.items():
        if len(table):
            path = folder / f"{name}.csv"
            write_text(path, table.round(DECIMALS).to_csv(index=False, lineterminator="\n"))
            written.append(path)
    return written
