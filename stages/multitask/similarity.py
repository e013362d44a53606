"""Do regions that overlap more transfer more?  A rank correlation over pairs of tasks, with its interval."""

from dataclasses import dataclass

import numpy as np

from stages.lib.metrics.ranks import spearman

CONFIDENCE = 0.95
DRAWS = 2000
# fewer pairs than this in a resample say nothing about ranks
FEWEST = 3
# an interval from fewer usable resamples than this share would rest on an odd choice of them
USABLE = 0.5


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation over `pairs` ordered pairs of different tasks, and its bootstrap interval.

    None where there is none: a side that is constant, too few pairs, too few usable resamples.
    """

    pairs: int
    rho: float | None
    low: float | None
    high: float | None


def correlate(first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Correlation:
    """Of two square arrays over the same tasks, their diagonals and NaN left out.

    Pairs with a task in common are not independent, so it is tasks that the bootstrap draws anew: rows
    and columns together, pairs of a task with itself left out.
    """
    known = ~(np.isnan(first) | np.isnan(second))
    np.fill_diagonal(known, False)
    pairs = int(known.sum())
    rho = spearman(first[known], second[known]) if pairs >= FEWEST else None
    if rho is None:
        return Correlation(pairs, None, None, None)
    drawn = [_resampled(first, second, known, generator) for _ in range(DRAWS)]
    usable = [value for value in drawn if value is not None]
    if len(usable) < USABLE * DRAWS:
        return Correlation(pairs, rho, None, None)
    low, high = np.quantile(usable, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Correlation(pairs, rho, float(low), float(high))


def _resampled(
    first: np.ndarray, second: np.ndarray, known: np.ndarray, generator: np.random.Generator
) -> float | None:
    chosen = generator.integers(len(known), size=len(known))
    places = np.ix_(chosen, chosen)
    there = known[places]
    return spearman(first[places][there], second[places][there]) if there.sum() >= FEWEST else None
