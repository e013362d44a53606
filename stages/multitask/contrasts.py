"""The numbers of one matrix of regions and tasks, and the comparisons that the paper's claims are about.

What two kinds of regions do is compared on the same task, since relative gains on different tasks have different
scales.  A value belongs to the task of a region and to the one it is tested on, so both are left out by the jackknife.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pandas as pd

from stages.lib.metrics.overlap import spearman
from stages.lib.report.format import small_percent, words
from stages.lib.report.stats import Estimate, estimate
from stages.multitask.load import MATRIX, PURIFIED, SINGLE, UNION, Multitask

OWN, OTHERS, ALIKE, UNALIKE = "own region", "other regions", "regions of similar tasks", "regions of other tasks"
UNION_IN, UNION_OUT = "union, its tasks", "union, excluded tasks"
PURIFIED_IN, PURIFIED_OUT = "purified, its tasks", "purified, excluded tasks"
ONE_MODEL, ONE_MODEL_ALIKE, ONE_MODEL_UNALIKE = "one model, two tasks", "similar tasks", "dissimilar tasks"
TWO_SEEDS, TWO_SEEDS_OTHER = "two seeds, one task", "two seeds, two tasks"
# fewer pairs than this say nothing about ranks
FEWEST_PAIRS = 3
# Fisher's z of 1 would be infinite
LARGEST_RHO = 0.999


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
class Contrast:
    """Mean of one side and of the other over tasks, and `value`, the first less the second."""

    first: float
    second: float
    value: Estimate


@dataclass(frozen=True)
class Matrix:
    """The regions of all tasks in the joint models of one paradigm, by one localizer, at one sparsity."""

    data: Multitask
    paradigm: str
    localizer: str
    sparsity: float

    @property
    def title(self) -> str:
        """In words: "SGD, learned, 1.00 %"."""
        return f"{words(self.paradigm)}, {words(self.localizer)}, {small_percent(self.sparsity)}"

    @property
    def name(self) -> str:
        """In names of files: "sgd_learned_0.01"."""
        return f"{self.paradigm}_{self.localizer}_{self.sparsity}"

    @cached_property
    def gains(self) -> dict[str, pd.DataFrame]:
        """Rows of `gains` by kind of region, those that can't be said left out."""
        rows = self._rows(self.data.gains).dropna(subset=["gain"])
        inside, alike = rows.inside.astype(bool), rows.alike.astype(bool)
        single, union, purified = (rows.kind == name for name in (SINGLE, UNION, PURIFIED))
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
        return {kind: rows[these] for kind, these in chosen.items()}

    @cached_property
    def overlaps(self) -> dict[str, pd.DataFrame]:
        """Ordered pairs of regions by kind; `seed` is the first region's."""
        rows = self._rows(self.data.overlaps).assign(seed=lambda rows: rows.first_seed)
        one_model, one_task = rows.first_seed == rows.second_seed, rows["first"] == rows["second"]
        alike = rows.alike.astype(bool)
        chosen = {
            ONE_MODEL: one_model,
            ONE_MODEL_ALIKE: one_model & alike,
            ONE_MODEL_UNALIKE: one_model & ~alike,
            TWO_SEEDS: ~one_model & one_task,
            TWO_SEEDS_OTHER: ~one_model & ~one_task,
        }
        return {kind: rows[these] for kind, these in chosen.items()}

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame[MATRIX] == [self.paradigm, self.localizer, self.sparsity]).all(axis=1)]

    def gain_grid(self, kind: str) -> Grid:
        """Relative gain of every source of a kind (rows) on every task (columns)."""
        rows = self._rows(self.data.gains)
        sources = self.data.tasks if kind == SINGLE else [*self.data.unions]
        return _grid(rows[rows.kind == kind], ("source", "target"), "gain", sources, self.data.tasks)

    @cached_property
    def overlap_grid(self) -> Grid:
        """|A ∩ B| / |B| of every two regions of one seed; on the diagonal those of one task in different seeds."""
        rows = pd.concat([self.overlaps[ONE_MODEL], self.overlaps[TWO_SEEDS]])
        # two seeds make two ordered pairs, which are one measurement
        seeds = rows[["first_seed", "second_seed"]]
        rows = rows.assign(low=seeds.min(axis=1), high=seeds.max(axis=1))
        once = rows.groupby(["first", "second", "low", "high"])["overlap"].mean().reset_index()
        return _grid(once, ("first", "second"), "overlap", self.data.tasks, self.data.tasks)

    def gain(self, kind: str) -> Estimate:
        """Relative gain over the tasks that regions of a kind are tested on."""
        return estimate(self.gains[kind].set_index(["target", "seed"]).gain, ("target",))

    def overlap(self, kind: str) -> Estimate:
        """Overlap over pairs of tasks."""
        return estimate(self.overlaps[kind].set_index(["first", "second", "seed"]).overlap, ("first", "second"))

    def gain_contrast(self, first: str, second: str) -> Contrast:
        """Gains from two kinds of single regions, on tasks that have both."""
        sides = [self.gains[kind] for kind in (first, second)]
        both = {*sides[0].target} & {*sides[1].target}
        return contrast(*(rows[rows.target.isin(both)] for rows in sides), "gain", ("source", "target"))

    def union_contrast(self, first: str, second: str) -> Contrast:
        """Gains from unions on tasks of theirs and on others: of one union these are different tasks."""
        return contrast(self.gains[first], self.gains[second], "gain", ("target",))

    def overlap_contrast(self, first: str, second: str) -> Contrast:
        """Overlaps of two kinds of pairs."""
        return contrast(self.overlaps[first], self.overlaps[second], "overlap", ("first", "second"))

    @cached_property
    def similarity(self) -> Estimate:
        """Spearman's correlation of two tasks' overlap with what the one's region does for the other, over ordered pairs.

        As Fisher's z (`rho` turns it back), so that no interval leaves -1 to 1.
        """
        gains = self.gains[OTHERS].set_index(["source", "target", "seed"]).gain
        overlaps = self.overlaps[ONE_MODEL].set_index(["first", "second", "seed"]).overlap
        cells = pd.concat({"overlap": overlaps.rename_axis(gains.index.names), "gain": gains}, axis=1)
        value = estimate(cells, ("source", "target"), _fisher_z)
        return value if value.units and not np.isnan(value.mean) else Estimate(0, None, None)

    @property
    def rho(self) -> dict[str, float]:
        """`similarity` as a correlation: mean, and low and high where it has an interval."""
        ends = {name: getattr(self.similarity, name) for name in ("mean", "low", "high")}
        return {name: float(np.tanh(end)) for name, end in ends.items() if end is not None}

    def highest_own(self) -> tuple[int, int]:
        """(cells in which the own region gains more than every other, cells where relative gains can be said)."""
        own, others = (self.gains[kind].groupby(["target", "seed"])["gain"].max() for kind in (OWN, OTHERS))
        both = pd.concat({"own": own, "best": others}, axis=1).dropna()
        return int((both.own > both.best).sum()), len(both)


def contrast(first: pd.DataFrame, second: pd.DataFrame, value: str, tasks: Sequence[str]) -> Contrast:
    """Mean of a value over the rows of one side less that over the other's; a unit may be on both."""
    rows = pd.concat([first.assign(side=1.0), second.assign(side=0.0)])
    inside, values = rows.side.to_numpy(), rows[value].to_numpy(float)
    sums = {"first": inside * values, "firsts": inside, "second": (1 - inside) * values, "seconds": 1 - inside}
    cells = pd.DataFrame(sums, index=pd.MultiIndex.from_frame(rows[[*tasks, "seed"]]))
    means = [_mean(cells.groupby(level=[*tasks]).mean(), side) for side in ("first", "second")]
    return Contrast(*means, estimate(cells if not np.isnan(means).any() else cells[:0], tasks, _difference))


def _mean(units: pd.DataFrame, side: str) -> float:
    count = units[f"{side}s"].sum()
    return float(units[side].sum() / count) if count else np.nan


def _difference(units: pd.DataFrame) -> float:
    return _mean(units, "first") - _mean(units, "second")


def _fisher_z(units: pd.DataFrame) -> float:
    rho = spearman(units.overlap, units.gain) if len(units) >= FEWEST_PAIRS else None
    return np.nan if rho is None else float(np.arctanh(np.clip(rho, -LARGEST_RHO, LARGEST_RHO)))


@cache
def matrices(data: Multitask) -> list[Matrix]:
    """All of them, in the order of params.yaml; the same ones each time, since they keep what they have computed."""
    keys = data.gains[MATRIX].drop_duplicates().itertuples(index=False, name=None)
    return [Matrix(data, *key) for key in keys]


def _grid(rows: pd.DataFrame, places: tuple[str, str], value: str, names: list[str], tasks: list[str]) -> Grid:
    groups = rows.groupby([*places])[value]

    def table(series: pd.Series) -> pd.DataFrame:
        return series.unstack().reindex(index=names, columns=tasks)

    counts = (table(sizes).fillna(0).astype(int) for sizes in (groups.count(), groups.size()))
    return Grid(table(groups.mean()), table(groups.std(ddof=1)), *counts)
