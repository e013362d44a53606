"""The numbers of one matrix: which rows of the frames, and their means over seeds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from stages.lib.report.format import small_percent
from stages.multitask.report.collecting import MATRIX, SINGLE, Multitask
from stages.multitask.similarity import Correlation, correlate

# the bootstrap's draws are the same in every report
BOOTSTRAP_SEED = 0

Key = tuple[str, str, float]


@dataclass(frozen=True)
class Grid:
    """Rows and columns by name; mean over seeds (NaN where there is none), sample deviation, number of seeds.

    `full`: number of seeds of a cell that lacks none.
    """

    mean: pd.DataFrame
    sd: pd.DataFrame
    n: pd.DataFrame
    full: pd.DataFrame


def of_matrix(frame: pd.DataFrame, key: Key) -> pd.DataFrame:
    """The rows of one (paradigm, localizer, sparsity)."""
    return frame[(frame[MATRIX] == [*key]).all(axis=1)]


def called(key: Key) -> str:
    """A matrix in words: "sgd, learned, 1.00 %"."""
    paradigm, localizer, sparsity = key
    return f"{paradigm}, {localizer}, {small_percent(sparsity)}"


def gain_grid(found: Multitask, key: Key, kind: str) -> Grid:
    """Relative gain of every source of a kind (rows) on every task (columns)."""
    rows = of_matrix(found.gains, key)
    sources = found.tasks if kind == SINGLE else [*found.unions]
    return _grid(rows[rows.kind == kind], ("source", "target"), "gain", sources, found.tasks)


def overlap_grid(found: Multitask, key: Key) -> Grid:
    """|A ∩ B| / |B| of every two regions of one seed; on the diagonal those of one task in different seeds."""
    rows = of_matrix(found.overlaps, key)
    rows = rows[same_seed(rows) | same_task(rows)]
    # two seeds make two ordered pairs, which are one measurement
    seeds = rows[["first_seed", "second_seed"]]
    rows = rows.assign(low=seeds.min(axis=1), high=seeds.max(axis=1))
    once = rows.groupby(["first", "second", "low", "high"])["overlap"].mean().reset_index()
    return _grid(once, ("first", "second"), "overlap", found.tasks, found.tasks)


def same_seed(rows: pd.DataFrame) -> pd.Series:
    """Pairs of regions of one joint model."""
    return rows.first_seed == rows.second_seed


def same_task(rows: pd.DataFrame) -> pd.Series:
    """Pairs of regions of one task, which are of different seeds."""
    return rows["first"] == rows["second"]


def similarity(found: Multitask, key: Key) -> Correlation:
    """Overlap of two tasks' regions against what the one's graft does for the other, both means over seeds."""
    overlap, gain = overlap_grid(found, key).mean, gain_grid(found, key, SINGLE).mean
    return correlate(overlap.to_numpy(float), gain.to_numpy(float), np.random.default_rng(BOOTSTRAP_SEED))


def _grid(rows: pd.DataFrame, places: tuple[str, str], value: str, names: list[str], tasks: list[str]) -> Grid:
    groups = rows.groupby([*places])[value]

    def table(series: pd.Series) -> pd.DataFrame:
        return series.unstack().reindex(index=names, columns=tasks)

    counts = (table(found).fillna(0).astype(int) for found in (groups.count(), groups.size()))
    return Grid(table(groups.mean()), table(groups.std(ddof=1)), *counts)
