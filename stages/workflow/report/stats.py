"""Means over cells with how many and how spread, and estimates over tasks with their 95 % intervals.

Tasks are the sample: another seed of a task is no other task.  An estimate averages each task (or each pair of tasks) over
its seeds first; its interval is the jackknife's over tasks (Tukey, 1958; Arvesen, 1969), which for one value a task is the
t-interval of these values, and which also holds where a value belongs to two tasks or is a ratio of means.  Where no task is
in two pairs, the pairs are the sample.

Tasks whose texts are from one data set may err together.  So there is a second interval, by source, for which the jackknife's
values of a source's tasks are added up (Liang and Zeger, 1986; t with one degree of freedom less than there are sources).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from skill_grafting.support.formatting import percent
from stages.text.tasks.tasks import registry
from stages.workflow.report.formats import counts, points, written

CONFIDENCE = 0.95
FEWEST = 4  # tasks, pairs that share none, or sources: an interval over fewer rests on a spread that is hardly known
# what two tasks may differ by and still be the same
ROUNDING = 1e-9
POWER = 0.8  # how often a difference that is called large enough to be shown would be
# tasks with texts of another: the sentences of SST-2 are those of MR
SAME_TEXTS = {"sst2": "mr"}


@cache
def source_of(task: str) -> str:
    """The data set that a built-in task's texts are from: a package, or an entry of the hub; of a user's own task, the task itself."""
    entry = registry().get(SAME_TEXTS.get(task, task), {})
    if parts := entry.get("parts"):
        return source_of(parts[0])
    if packaged := entry.get("packaged"):
        return packaged["package"]
    hub = entry.get("hub", {"path": task})
    return "/".join(filter(None, (hub["path"], hub.get("name"))))


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
    tasks, or pairs where no two share one.  There is no error, so no interval, for fewer than FEWEST drawn.  `source_error` is the error
    by source, and of `sources` those that a pair joins count as one; it is None for fewer than 2, and for 2 that are the same: shares
    of a few rows often are by chance, and an interval without width would tell far too much.  Of a single task `bootstrap` has both
    ends of an interval over its test rows, which tells nothing about other tasks.
    """

    tasks: int = 0
    seeds: int = 0
    fewest_seeds: int = 0
    units: int = 0
    positive: int | None = None
    error: float | None = None
    drawn: int = 0
    source_error: float | None = None
    sources: int = 0
    bootstrap: tuple[float, float] | None = None

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval over tasks."""
        return None if self.error is None else self.mean - _t_quantile(self.drawn - 1) * self.error

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval over tasks."""
        return None if self.error is None else self.mean + _t_quantile(self.drawn - 1) * self.error

    @property
    def by_source(self) -> tuple[float, float] | None:
        """Both ends of the 95 % interval over sources; None without one."""
        if self.source_error is None:
            return None
        half = _t_quantile(self.sources - 1) * self.source_error
        return self.mean - half, self.mean + half

    @property
    def samples(self) -> list[tuple[float, int]]:
        """Standard error and number of what was drawn: over tasks, and over sources."""
        return [(self.error, self.drawn), (self.source_error, self.sources)]

    @property
    def fewest(self) -> int:
        """The smaller number of what was drawn: tasks (or pairs), or sources."""
        return min(self.drawn, self.sources)

    def p_value(self, limit: float = 0.0) -> float | None:
        """Two-sided, of the limit, the larger one of both samples: below 0.05 just where both intervals exclude it; None without both."""
        if None in (self.error, self.source_error):
            return None
        return max(_p_value(self.mean - limit, *sample) for sample in self.samples)

    def smallest(self, level: float) -> float | None:
        """The smallest difference from a limit whose p-value would be below `level` four times in five; None without both intervals."""
        if None in (self.error, self.source_error):
            return None
        return max(error * _shown_at(level, count - 1) for error, count in self.samples)

    def number(self) -> str:
        """The units: "8 tasks", "12 tasks of 5 sources", "28 pairs of 8 tasks"."""
        pairs = f"{counts(pair=self.units)} of " if self.units != self.tasks else ""
        sources = f" of {counts(source=self.sources)}" if self.sources < self.drawn else ""
        return f"{pairs}{counts(task=self.tasks)}{sources}"

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
        """Both ends of the interval, and of that by source if it is another: "+0.4 to +2.0; by source -0.1 to +2.5"; empty without one."""
        if self.error is None:
            return ""
        apart = self.by_source and self.sources < self.drawn
        by_source = "; by source {} to {}".format(*map(write, self.by_source)) if apart else ""
        return f"{write(self.low)} to {write(self.high)}{by_source}"

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
    alone_drawn = names.size == len(every)
    one_of_each = names[:, :1] if alone_drawn else names
    drawn = pd.unique(one_of_each.ravel())
    without = [units[(one_of_each != name).all(axis=1)] for name in drawn]
    pseudo = _pseudo_values(units, without, statistic)
    sources = _joined([[source_of(str(name)) for name in row] for row in (names if alone_drawn else drawn[:, None])])
    samples = _error(pseudo, range(len(drawn))), len(drawn), _error(pseudo, sources), len({*sources})
    numbers = len(every), seeds.nunique(), fewest, len(units)
    return Estimate(len(cells), float(statistic(units)), sd, *numbers, positive, *samples)


def _pseudo_values(
    units: pd.Series | pd.DataFrame, without: Sequence[pd.Series | pd.DataFrame], statistic: Callable[[Any], float]
) -> np.ndarray | None:
    """The jackknife's values of leaving out each that was drawn; None where too few are left for one."""
    count = len(without)
    if count < FEWEST or not all(map(len, without)):
        return None
    return count * float(statistic(units)) - (count - 1) * np.array([float(statistic(left)) for left in without])


def _error(pseudo: np.ndarray | None, groups: Sequence[int]) -> float | None:
    """Standard error of the mean of the jackknife's values, of which those of one group may err together; None of too few groups."""
    count = len({*groups})
    if pseudo is None or count < 2:
        return None
    sums = np.bincount(groups, weights=pseudo - pseudo.mean(), minlength=count)
    error = float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(pseudo))
    return None if np.isnan(error) or (count == 2 and error <= ROUNDING) else error


def _joined(rows: Sequence[Sequence[str]]) -> list[int]:
    """The number of each row's group, where rows with a name in common are of one group."""
    group = {name: name for row in rows for name in row}
    for row in rows:
        joined = {group[name] for name in row}
        group = {name: group[row[0]] if of in joined else of for name, of in group.items()}
    return pd.factorize(pd.Series([group[row[0]] for row in rows], dtype=object))[0].tolist()


def _p_value(above: float, error: float, count: int) -> float:
    """Two-sided p-value of a mean that lies so far from its limit."""
    from scipy.stats import t

    if error <= ROUNDING:
        return float(abs(above) <= ROUNDING)
    return float(2 * t.sf(abs(above) / error, count - 1))


@cache
def _t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t: 12.71 for 1 degree of freedom, 1.96 for many."""
    from scipy.stats import t  # takes a second to import

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


@cache
def _shown_at(level: float, freedom: int) -> float:
    """How many standard errors a mean has to be from its limit to be shown at this level with POWER, by the noncentral t."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = t.ppf(1 - level / 2, freedom)
    return float(brentq(lambda apart: nct.sf(critical, freedom, apart) - POWER, 0, 3 * critical))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of one family, each corrected for how many there are (Holm, 1979)."""
    order, corrected = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    factors = np.arange(len(p_values), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1)
    return corrected.tolist()
