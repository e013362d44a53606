"""Means over cells with how many and how spread, and paired differences with their 95 % interval."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from stages.lib.report.document import Verdict
from stages.lib.report.wording import points, spread

CONFIDENCE = 0.95
GRID = 200_001
# what two differences may differ by and still be the same
ROUNDING = 1e-9


@dataclass(frozen=True)
class Mean:
    """Mean of n cells and their sample standard deviation (divisor n - 1), None where there is none."""

    n: int
    mean: float | None
    sd: float | None

    def text(self) -> str:
        """In %, as in the paper's tables: "90.5 (0.4)"; empty without cells."""
        return spread(self.mean, self.sd) if self.n else ""

    def numbers(self) -> dict[str, float | int]:
        """As a part of the summary, without what is undefined."""
        return _defined({"n": self.n, "mean": self.mean, "sd": self.sd})


@dataclass(frozen=True)
class Difference(Mean):
    """Mean of paired differences, with `positive` of them above 0, and the t-interval for it.

    There is none for fewer than 2, nor for 2 that are the same: shares of a few rows often are by
    chance, and an interval without width would tell far too much.
    """

    low: float | None
    high: float | None
    positive: int

    @property
    def above_zero(self) -> Verdict:
        """Whether it is, by its interval; not measurable without one."""
        return self.above(0.0)

    def above(self, limit: float) -> Verdict:
        """Whether it is, by its interval."""
        return Verdict.of_interval(self.low, self.high, limit)

    def below(self, limit: float) -> Verdict:
        """Whether it is, by its interval."""
        if self.low is None or self.high is None:
            return Verdict.OPEN
        return Verdict.of_interval(-self.high, -self.low, -limit)

    def words(self) -> str:
        """In percentage points: "+1.2 points, 95 % interval +0.4 to +2.0, higher in 5 of 6 cells"."""
        if self.n == 0:
            return "no common cells"
        interval = "" if self.low is None else f", 95 % interval {points(self.low)} to {points(self.high)}"
        return f"{points(self.mean)} points{interval}, higher in {self.positive} of {self.n} cells"

    def numbers(self) -> dict[str, float | int]:
        """As a part of the summary, without what is undefined."""
        return super().numbers() | _defined({"low": self.low, "high": self.high, "positive": self.positive})


def mean_of(values: pd.Series | np.ndarray) -> Mean:
    """`Mean` of the defined ones among these values, one a cell."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    if not len(known):
        return Mean(0, None, None)
    return Mean(len(known), float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None)


def paired(first: pd.Series, second: pd.Series) -> Difference:
    """first - second over the cells that both have, told by their index."""
    differences = (first - second).dropna().to_numpy(float)
    mean, low, high = mean_of(differences), None, None
    if mean.n > 2 or (mean.n == 2 and mean.sd > ROUNDING):
        half = t_quantile(mean.n - 1) * mean.sd / np.sqrt(mean.n)
        low, high = float(mean.mean - half), float(mean.mean + half)
    return Difference(mean.n, mean.mean, mean.sd, low, high, int((differences > 0).sum()))


@cache
def t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t: 12.71 for 1 degree of freedom, 1.96 for many.

    With t = sqrt(freedom) tan(angle) the density is cos(angle)^(freedom - 1) on 0..pi/2, up to a
    factor; it is integrated by the trapezoid rule.
    """
    angles = np.linspace(0, np.pi / 2, GRID)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(freedom) * np.tan(np.interp(CONFIDENCE, below / below[-1], angles)))


def _defined(numbers: dict[str, float | int | None]) -> dict[str, float | int]:
    return {name: number for name, number in numbers.items() if number is not None}
