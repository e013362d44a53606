"""Agreement of two rankings, from the scores that they come from."""

from collections.abc import Sequence

import numpy as np


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of the ranks, -1 to 1, ties sharing their mean rank; None if one side is constant."""
    left, right = (_ranks(np.asarray(values, float)) for values in (first, second))
    left, right = left - left.mean(), right - right.mean()
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / scale) if scale else None


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b, -1 to 1: pairs in the same order less pairs in the opposite one, over pairs without ties.

    None if one side is constant.
    """
    left, right = (_signs(np.asarray(values, float)) for values in (first, second))
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / scale) if scale else None


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values).sum(1)
    same = (values[:, None] == values).sum(1)
    return below + (same + 1) / 2


def _signs(values: np.ndarray) -> np.ndarray:
    """Which of each pair is larger, the pairs once in each order."""
    return np.sign(values[:, None] - values)
