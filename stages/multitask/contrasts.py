"""The numbers of one matrix of regions and tasks, and the comparisons that the paper's claims are about.

What two kinds of regions do is compared on the same task, since relative gains on different tasks have
different scales: a cell is a (target task, seed), for unions a (union, target task, seed).
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pandas as pd

from stages.lib.report.format import small_percent
from stages.lib.report.stats import Estimate, paired
from stages.multitask.load import MATRIX, PURIFIED, SINGLE, UNION, Multitask
from stages.multitask.similarity import Correlation, correlate

OWN, OTHERS, ALIKE, UNALIKE = "own region", "other regions", "regions of similar tasks", "regions of other tasks"
UNION_IN, UNION_OUT = "union, its tasks", "union, other tasks"
PURIFIED_IN, PURIFIED_OUT = "purified, its tasks", "purified, other tasks"
GAIN_KINDS = (OWN, OTHERS, ALIKE, UNALIKE, UNION_IN, UNION_OUT, PURIFIED_IN, PURIFIED_OUT)

SAME_MODEL, SAME_MODEL_ALIKE, SAME_MODEL_UNALIKE = "one model, two tasks", "similar tasks", "dissimilar tasks"
TWO_SEEDS, TWO_SEEDS_OTHER = "two seeds, one task", "two seeds, two tasks"
OVERLAP_KINDS = (SAME_MODEL, SAME_MODEL_ALIKE, SAME_MODEL_UNALIKE, TWO_SEEDS, TWO_SEEDS_OTHER)

CELL = ["target", "seed"]
# the bootstrap's draws are the same in every report
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Grid:
    """Rows and columns by name; mean over seeds (NaN where there is none), sample deviation, number of seeds.

    `full`: number of seeds of a cell that lacks none.
    """

    mean: pd.DataFrame
    sd: pd.DataFrame
    n: pd.DataFrame
    full: pd.DataFrame


@dataclass(frozen=True)
class Matrix:
    """The regions of all tasks in the joint models of one paradigm, by one localizer, at one sparsity."""

    data: Multitask
    paradigm: str
    localizer: str
    sparsity: float

    @property
    def title(self) -> str:
        """In words: "sgd, learned, 1.00 %"."""
        return f"{self.paradigm}, {self.localizer}, {small_percent(self.sparsity)}"

    @property
    def name(self) -> str:
        """In names of files: "sgd_learned_0.01"."""
        return f"{self.paradigm}_{self.localizer}_{self.sparsity}"

    @cached_property
    def gains(self) -> pd.DataFrame:
        """Its rows of `gains`."""
        return self._rows(self.data.gains)

    @cached_property
    def overlaps(self) -> pd.DataFrame:
        """Its rows of `overlaps`."""
        return self._rows(self.data.overlaps)

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame[MATRIX] == [self.paradigm, self.localizer, self.sparsity]).all(axis=1)]

    def gain_grid(self, kind: str) -> Grid:
        """Relative gain of every source of a kind (rows) on every task (columns)."""
        sources = self.data.tasks if kind == SINGLE else [*self.data.unions]
        rows = self.gains[self.gains.kind == kind]
        return _grid(rows, ("source", "target"), "gain", sources, self.data.tasks)

    @cached_property
    def overlap_grid(self) -> Grid:
        """|A ∩ B| / |B| of every two regions of one seed; on the diagonal those of one task in different seeds."""
        rows = self.overlaps[same_seed(self.overlaps) | same_task(self.overlaps)]
        # two seeds make two ordered pairs, which are one measurement
        seeds = rows[["first_seed", "second_seed"]]
        rows = rows.assign(low=seeds.min(axis=1), high=seeds.max(axis=1))
        once = rows.groupby(["first", "second", "low", "high"])["overlap"].mean().reset_index()
        return _grid(once, ("first", "second"), "overlap", self.data.tasks, self.data.tasks)

    @cached_property
    def similarity(self) -> Correlation:
        """Overlap of two tasks' regions against what the one's graft does for the other, both means over seeds."""
        overlap, gain = self.overlap_grid.mean, self.gain_grid(SINGLE).mean
        return correlate(overlap.to_numpy(float), gain.to_numpy(float), np.random.default_rng(BOOTSTRAP_SEED))

    def gain_rows(self, kind: str) -> pd.DataFrame:
        """The relative gains of one of GAIN_KINDS, those that can't be said left out."""
        rows = self.gains.dropna(subset=["gain"])
        single, union, purified = (rows.kind == name for name in (SINGLE, UNION, PURIFIED))
        inside, alike = rows.inside.astype(bool), rows.alike.astype(bool)
        chosen = {
            OWN: single & inside,
            OTHERS: single & ~inside,
            ALIKE: single & ~inside & alike,
            UNALIKE: single & ~inside & ~alike,
            UNION_IN: union & inside,
            UNION_OUT: union & ~inside,
            PURIFIED_IN: purified & inside,
            PURIFIED_OUT: purified & ~inside,
        }
        return rows[chosen[kind]]

    def gain_by_cell(self, kind: str) -> pd.Series:
        """Their means by (target, seed); of unions by (source, target, seed)."""
        by = ["source", *CELL] if kind in GAIN_KINDS[4:] else CELL
        return self.gain_rows(kind).groupby(by, sort=False)["gain"].mean()

    def gain_difference(self, first: str, second: str) -> Estimate:
        """first - second, over the cells that have both."""
        return paired(self.gain_by_cell(first), self.gain_by_cell(second))

    def overlap_rows(self, kind: str) -> pd.DataFrame:
        """The pairs of regions of one of OVERLAP_KINDS."""
        rows = self.overlaps
        one_model, one_task, alike = same_seed(rows), same_task(rows), rows.alike.astype(bool)
        chosen = {
            SAME_MODEL: one_model,
            SAME_MODEL_ALIKE: one_model & alike,
            SAME_MODEL_UNALIKE: one_model & ~alike,
            TWO_SEEDS: ~one_model & one_task,
            TWO_SEEDS_OTHER: ~one_model & ~one_task,
        }
        return rows[chosen[kind]]

    def overlap_difference(self, first: str, second: str) -> Estimate:
        """first - second, by the second region's task and seed."""
        by = ["second", "second_seed"]
        return paired(*(self.overlap_rows(kind).groupby(by)["overlap"].mean() for kind in (first, second)))

    def highest_own(self) -> tuple[int, int]:
        """(cells in which the own region gains more than every other, cells where relative gains can be said)."""
        best = self.gain_rows(OTHERS).groupby(CELL)["gain"].max()
        both = pd.concat({"own": self.gain_by_cell(OWN), "best": best}, axis=1).dropna()
        return int((both.own > both.best).sum()), len(both)


@cache
def matrices(data: Multitask) -> list[Matrix]:
    """All of them, in the order of params.yaml; the same ones each time, since a bootstrap hangs on each."""
    keys = data.gains[MATRIX].drop_duplicates().itertuples(index=False, name=None)
    return [Matrix(data, *key) for key in keys]


def same_seed(rows: pd.DataFrame) -> pd.Series:
    """Pairs of regions of one joint model."""
    return rows.first_seed == rows.second_seed


def same_task(rows: pd.DataFrame) -> pd.Series:
    """Pairs of regions of one task, which are of different seeds."""
    return rows["first"] == rows["second"]


def _grid(rows: pd.DataFrame, places: tuple[str, str], value: str, names: list[str], tasks: list[str]) -> Grid:
    groups = rows.groupby([*places])[value]

    def table(series: pd.Series) -> pd.DataFrame:
        return series.unstack().reindex(index=names, columns=tasks)

    counts = (table(sizes).fillna(0).astype(int) for sizes in (groups.count(), groups.size()))
    return Grid(table(groups.mean()), table(groups.std(ddof=1)), *counts)
