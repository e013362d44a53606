"""Means over cells with how many and how spread, and paired differences with their 95 % interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from stages.lib.report.document import Verdict
from stages.lib.report.format import points, spread

CONFIDENCE = 0.95
# what two differences may differ by and still be the same
ROUNDING = 1e-9
DECIMALS = 6


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
        """As a part of the metrics file, without what is undefined."""
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
        """The verdict on "above 0", by the interval; not measurable without one."""
        return self.above(0.0)

    def above(self, limit: float) -> Verdict:
        """The verdict on "above the limit", by the interval."""
        return Verdict.of_interval(self.low, self.high, limit)

    def below(self, limit: float) -> Verdict:
        """The verdict on "below the limit", by the interval."""
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
        """As a part of the metrics file, without what is undefined."""
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


def compared(
    frame: pd.DataFrame, measure: str, pair: tuple[str, str], cell: Sequence[str], by: str = "method"
) -> Difference:
    """Of a measure the first - the second of a `pair` of methods, paired by cell."""
    rows = frame[[by, *cell, measure]]
    return paired(*(rows[rows[by] == name].set_index([*cell])[measure].astype(float) for name in pair))


@cache
def t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t: 12.71 for 1 degree of freedom, 1.96 for many."""
    from scipy.stats import t  # takes a second to import

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of these means, differences, or nested mappings of them; those of no cell at all are left out."""
    found = {name: value.numbers() if isinstance(value, Mean) else known(value) for name, value in values.items()}
    return {name: numbers for name, numbers in found.items() if numbers and numbers.get("n") != 0}


def clean(value: Any) -> Any:
    """A part of a metrics file with its numbers rounded, and without undefined ones."""
    if isinstance(value, dict):
        parts = {name: clean(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if value is None:
        return None
    if isinstance(value, float):
        # adding 0 makes -0.0 plain
        return None if pd.isna(value) else round(float(value), DECIMALS) + 0.0
    return value if value is None else int(value)


def _defined(numbers: dict[str, float | int | None]) -> dict[str, float | int]:
    return {name: number for name, number in numbers.items() if number is not None}
