"""Tidy tables of the study, as CSV for `dvc plots`."""

from pathlib import Path

from stages.lib.io import write_text
from stages.study.report.collecting import Study
from stages.study.report.tradeoff_figures import cost_points

DECIMALS = 6


def plot_data(study: Study, folder: Path) -> list[Path]:
    """Write <stage>.csv for every stage that ran, and what is known of its masks; gives their paths."""
    tables = {name: frame.dropna(axis=1, how="all") for name, frame in study.frames.items() if len(frame)}
    if "cost" in tables:
        tables["cost_mean"] = cost_points(study)
    for name, table in tables.items():
        rounded = table.round(dict.fromkeys(set(table.columns) - {"sparsity"}, DECIMALS))
        write_text(folder / f"{name}.csv", rounded.to_csv(index=False, lineterminator="\n"))
    return [folder / f"{name}.csv" for name in tables]
