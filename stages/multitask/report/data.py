"""Tidy tables of multi-task learning, as CSV for `dvc plots`."""

from pathlib import Path

from stages.lib.io import write_text
from stages.multitask.report.collecting import Multitask

DECIMALS = 6


def plot_data(found: Multitask, folder: Path) -> list[Path]:
    """Write level.csv, gain.csv and overlap.csv, those without rows left out; gives their paths.

    A relative gain that can't be said is empty.
    """
    tables = {"level": found.levels, "gain": found.gains, "overlap": found.overlaps}
    written = []
    for name, table in tables.items():
        if len(table):
            columns = set(table.select_dtypes("number").columns) - {"sparsity"}
            text = table.round(dict.fromkeys(columns, DECIMALS)).to_csv(index=False, lineterminator="\n")
            write_text(folder / f"{name}.csv", text)
            written.append(folder / f"{name}.csv")
    return written
