"""Tidy tables of task arithmetic, as CSV for `dvc plots`."""

from pathlib import Path

from stages.lib.io import write_text
from stages.talos.report.collecting import Talos

DECIMALS = 6


def plot_data(talos: Talos, folder: Path) -> list[Path]:
    """Write <frame>.csv for every frame that has rows; gives their paths."""
    tables = {name: frame for name, frame in talos.frames.items() if len(frame)}
    for name, table in tables.items():
        write_text(folder / f"{name}.csv", table.round(DECIMALS).to_csv(index=False, lineterminator="\n"))
    return [folder / f"{name}.csv" for name in tables]
