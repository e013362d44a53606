"""Agreement of two rankings, from the scores that they come from."""

from collections.abc import Callable, Sequence
from typing import Any


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of the ranks, -1 to 1, ties sharing their mean rank; None if one side is constant."""
    from scipy.stats import spearmanr  # takes seconds to import

    return _measured(spearmanr, first, second)


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b, -1 to 1; None if one side is constant."""
    from scipy.stats import kendalltau

    return _measured(kendalltau, first, second)


def _measured(measure: Callable[..., Any], first: Sequence[float], second: Sequence[float]) -> float | None:
    return None if min(len({*first}), len({*second})) < 2 else float(measure(first, second).statistic)
