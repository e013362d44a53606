"""Tidy tables for `dvc plots`, as CSV."""

from pathlib import Path

import pandas as pd

from stages.lib.io import write_text
from stages.report.cells import OOD_COLUMNS, SCORE_COLUMNS, Cells

DECIMALS = 6


def write_plot_data(cells: Cells, folder: Path) -> None:
    """Write scores.csv, ood.csv, reliability.csv and confidence.csv; all exist even where they have no rows."""
    tables = {
        "scores": cells.scores[SCORE_COLUMNS],
        "ood": cells.ood[OOD_COLUMNS],
        "reliability": occupied(pooled_bins(cells.reliability)),
        "confidence": pooled_bars(cells.confidence),
    }
    for name, table in tables.items():
        write_text(folder / f"{name}.csv", table.round(DECIMALS).to_csv(index=False, lineterminator="\n"))


def pooled_bins(frame: pd.DataFrame) -> pd.DataFrame:
    """Reliability bins of all seeds together: task, variant, bin (from 0), count, confidence, accuracy.

    Confidence and accuracy are those of the rows of all seeds, 0 in empty bins.
    """
    weighted = frame.assign(
        confidence=frame["confidence"] * frame["count"], accuracy=frame["accuracy"] * frame["count"]
    )
    sums = (
        weighted.groupby(["task", "variant", "bin"], sort=False)[["count", "confidence", "accuracy"]]
        .sum()
        .reset_index()
    )
    divisor = sums["count"].clip(lower=1)
    return sums.assign(confidence=sums["confidence"] / divisor, accuracy=sums["accuracy"] / divisor)


def occupied(bins: pd.DataFrame) -> pd.DataFrame:
    """Bins that have rows; the others would be drawn as points in the origin."""
    return bins[bins["count"] > 0]


def pooled_bars(frame: pd.DataFrame) -> pd.DataFrame:
    """Confidence histogram of all seeds together: task, variant, low, high, count, share of the task's rows."""
    sums = frame.groupby(["task", "variant", "low", "high"], sort=False)["count"].sum().reset_index()
    return sums.assign(share=sums["count"] / sums.groupby(["task", "variant"])["count"].transform("sum"))
