"""Means over cells with how many and how spread, and estimates over tasks with their 95 % interval.

Tasks are the sample: another seed of a task is no other task.  An estimate averages each task (or each pair of tasks) over
its seeds first; its interval is the jackknife's over tasks (Tukey, 1958; Arvesen, 1969), which for one value a task is the
t-interval of these values, and which also holds where a value belongs to two tasks or is a ratio of means.  Where no task is
in two pairs, the pairs are the sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from skill_grafting.support.formatting import percent
from stages.workflow.report.formats import counts, points, written

CONFIDENCE = 0.95
# what two tasks may differ by and still be the same
ROUNDING = 1e-9


@dataclass(frozen=True)
class Mean:
    """Mean of n cells and their sample standard deviation (divisor n - 1), None where there is none."""

    n: int
    mean: float | None
    sd: float | None

    def __format__(self, form: str) -> str:
        """The mean as `written` has it, with " ±" behind the format also the deviation: "90.5 (0.4)"; empty without cells."""
        form, spread, _ = form.partition(" ±")
        deviation = (
            f" ({written(self.sd, form.replace('points', 'percent'))})" if spread and self.sd is not None else ""
        )
        return "" if self.mean is None else written(self.mean, form) + deviation


@dataclass(frozen=True)
class Estimate(Mean):
    """A mean over tasks; `error` is its standard error by the jackknife, and `positive` of its `units` are above 0.

    A unit is a task, or a pair of tasks; there are `seeds` in all, and of each unit at least `fewest_seeds`.  Drawn are so many
    tasks, or pairs where no two share one.  There is no error, so no interval, for fewer than 2 drawn, nor for 2 that
    are the same: shares of a few rows often are by chance, and an interval without width would tell far too much.  Of a single
    task `bootstrap` has both ends of an interval over its test rows, which tells nothing about other tasks.
    """

    tasks: int = 0
    seeds: int = 0
    fewest_seeds: int = 0
    units: int = 0
    positive: int | None = None
    error: float | None = None
    drawn: int = 0
    bootstrap: tuple[float, float] | None = None

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return None if self.error is None else self.mean - _t_quantile(self.drawn - 1) * self.error

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return None if self.error is None else self.mean + _t_quantile(self.drawn - 1) * self.error

    def p_value(self, limit: float = 0.0) -> float | None:
        """Two-sided, of the limit: below 0.05 just where the interval excludes it; None without an interval."""
        from scipy.stats import t

        if self.error is None:
            return None
        if self.error <= ROUNDING:
            return float(abs(self.mean - limit) <= ROUNDING)
        return float(2 * t.sf(abs(self.mean - limit) / self.error, self.drawn - 1))

    def number(self) -> str:
        """The units: "8 tasks", "28 pairs of 8 tasks"."""
        return (f"{counts(pair=self.units)} of " if self.units != self.tasks else "") + counts(task=self.tasks)

    def sample(self) -> str:
        """The units and the seeds: "8 tasks, 3 seeds", "3 pairs of 6 tasks, 2 to 3 seeds" where some have fewer."""
        few = f"{self.fewest_seeds} to " if self.fewest_seeds < self.seeds else ""
        return f"{self.number()}, {few}{counts(seed=self.seeds)}"

    def __format__(self, form: str) -> str:
        """Also as `interval` (in points) or `interval percent`, or as `words` tells it."""
        own = {
            "interval": self.in_points,
            "interval percent": partial(self.in_points, percent),
            "words": self.words,
        }.get(form)
        return own() if own else super().__format__(form)

    def ends(self, write: Callable[[float], str]) -> str:
        """Both ends of the interval: "+0.4 to +2.0"; empty without one."""
        return "" if self.error is None else f"{write(self.low)} to {write(self.high)}"

    def interval(self, write: Callable[[float], str]) -> str:
        """The interval in words: "95 % interval +0.4 to +2.0"."""
        if self.bootstrap and self.error is None:
            return f"95 % bootstrap over its test rows {' to '.join(map(write, self.bootstrap))}"
        return "no interval" if self.error is None else f"95 % interval {self.ends(write)}"

    def in_points(self, write: Callable[[float], str] = points) -> str:
        """In percentage points, with the interval if there is one: "+1.2 (+0.4 to +2.0)"; empty without cells."""
        ends = f" ({self.ends(write)})" if self.error is not None else ""
        return write(self.mean) + ends if self.units else ""

    def words(self, unit: str = "points") -> str:
        """In percentage points or another unit ("%"): "+1.2 points (95 % interval +0.4 to +2.0; 4 tasks, 2 seeds; above 0 in 3 of 4)"."""
        if not self.units:
            return "no common cells"
        write = points if unit == "points" else percent
        told = unit == "points" and self.positive is not None
        above = f"; above 0 in {self.positive} of {self.units}" if told else ""
        return f"{write(self.mean)} {unit} ({self.interval(write)}; {self.sample()}{above})"


def mean_of(values: pd.Series | np.ndarray) -> Mean:
    """`Mean` of the defined ones among these values, one a cell."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    if not len(known):
        return Mean(0, None, None)
    return Mean(len(known), float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None)


def estimate(
    values: pd.Series | pd.DataFrame, tasks: Sequence[str] = ("task",), statistic: Callable[[Any], float] = np.mean
) -> Estimate:
    """A statistic of values whose index names their cells: a level `seed`, and levels that name `tasks`.

    It takes one mean for each task (or pair of tasks), over seeds and all else that is no task; of a frame, a frame of
    such means, so that it can make a ratio or a correlation of two columns.
    """
    cells = values.dropna(how="all")
    units = cells.groupby(level=[*tasks]).mean()
    if not len(units):
        return Estimate(0, None, None)
    names, seeds = units.index.to_frame(index=False).to_numpy(), cells.index.get_level_values("seed")
    fewest = int(pd.Series(seeds, cells.index).groupby(level=[*tasks]).nunique().min())
    every, alone = pd.unique(names.ravel()), isinstance(units, pd.Series)
    units = units.reset_index(drop=True)  # taking parts is quicker without names
    sd = float(units.std(ddof=1)) if alone and len(units) > 1 else None
    positive = int((units > ROUNDING).sum()) if alone else None
    # pairs of which no two share a task were drawn as pairs: leaving out either of its tasks leaves out the pair
    one_of_each = names[:, :1] if names.size == len(every) else names
    drawn = pd.unique(one_of_each.ravel())
    without = [units[(one_of_each != name).all(axis=1)] for name in drawn]
    error = _jackknife(units, without, statistic)
    numbers = len(every), seeds.nunique(), fewest, len(units)
    return Estimate(len(cells), float(statistic(units)), sd, *numbers, positive, error, len(drawn))


def _jackknife(
    units: pd.Series | pd.DataFrame, without: Sequence[pd.Series | pd.DataFrame], statistic: Callable[[Any], float]
) -> float | None:
    """Standard error by the pseudo-values of leaving out each that was drawn; None where too few are left for one."""
    count = len(without)
    if count < 2 or not all(map(len, without)):
        return None
    pseudo = count * float(statistic(units)) - (count - 1) * np.array([float(statistic(left)) for left in without])
    error = float(pseudo.std(ddof=1) / np.sqrt(count))
    return None if np.isnan(error) or (count == 2 and error <= ROUNDING) else error


@cache
def _t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t: 12.71 for 1 degree of freedom, 1.96 for many."""
    from scipy.stats import t  # takes a second to import

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of one family, each corrected for how many there are (Holm, 1979)."""
    order, corrected = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    factors = np.arange(len(p_values), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1)
    return corrected.tolist()
