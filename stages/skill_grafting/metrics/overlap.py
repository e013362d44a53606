"""Agreement of two localizations: overlap of two regions, beside that of two random ones, and of two rankings.

Regions are sets of region indices.  Two measures: intersection over union (table 8 of the paper), which is the same
either way round, and the share of the second region that lies in the first (figure 8a), which is not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def iou(first: np.ndarray, second: np.ndarray) -> float:
    """|A ∩ B| / |A ∪ B| of two arrays of distinct indices, in any order; 0 if both are empty."""
    common = intersection(first, second)
    union = len(first) + len(second) - common
    return common / union if union else 0.0


def asymmetric_overlap(first: np.ndarray, second: np.ndarray) -> float:
    """|A ∩ B| / |B| of two arrays of distinct indices; 0 if B is empty."""
    return intersection(first, second) / len(second) if len(second) else 0.0


def intersection(first: np.ndarray, second: np.ndarray) -> int:
    """|A ∩ B| of two arrays of distinct indices."""
    return len(np.intersect1d(first, second, assume_unique=True))


def chance_iou(first: int, second: int, size: int) -> float:
    """`iou` of two random sets of these sizes among `size` parameters, nearly: m / (a + b - m), m = a b / size.

    It puts the expected intersection m in place of the intersection.  IoU is convex in the
    intersection, so its true expectation is a little larger: by about 1 / max(a, b) of itself or
    less, and not at all where one of the sets is everything or nothing.
    """
    expected = _expected(first, second, size)
    union = first + second - expected
    return expected / union if union else 0.0


def chance_asymmetric_overlap(first: int, second: int, size: int) -> float:
    """The expectation of `asymmetric_overlap` for two random sets of these sizes: a / size, exactly."""
    return _expected(first, second, size) / second if second else 0.0


def _expected(first: int, second: int, size: int) -> float:
    """The mean of the hypergeometric distribution."""
    if not (0 <= first <= size and 0 <= second <= size):
        raise ValueError(f"sets of {first} and {second} do not fit among {size} parameters")
    return first * second / size if size else 0.0


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of the ranks of two lists of scores, -1 to 1, ties sharing their mean rank; None if one side is constant."""
    from scipy.stats import spearmanr  # takes seconds to import

    return _measured(spearmanr, first, second)


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two lists of scores, -1 to 1; None if one side is constant."""
    from scipy.stats import kendalltau

    return _measured(kendalltau, first, second)


def _measured(measure: Callable[..., Any], first: Sequence[float], second: Sequence[float]) -> float | None:
    return None if min(len({*first}), len({*second})) < 2 else float(measure(first, second).statistic)
