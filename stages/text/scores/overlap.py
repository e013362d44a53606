"""Agreement of two localizations: overlap of two masks, beside that of two random ones, and of two rankings.

Two measures: intersection over union (table 8 of the paper), which is the same either way round, and the share of the
second mask that lies in the first (figure 8a), which is not.
"""

from collections.abc import Sequence

from skill_grafting.grafting.mask import GraftMask


def overlap(first: GraftMask, second: GraftMask) -> dict[str, float]:
    """`iou`: GraftMask.overlap of two masks, and its `chance`."""
    return {"iou": first.overlap(second), "chance": chance(first.selected, second.selected, first.region.size)}


def share_inside(first: GraftMask, second: GraftMask) -> dict[str, float]:
    """`overlap`: |A ∩ B| / |B|, 0 if B is empty, and `chance`: its expectation for random masks of these sizes, exactly."""
    a, b = first.selected, second.selected
    both, expected = (first & second).selected, _expected(a, b, first.region.size)
    return {"overlap": both / b, "chance": expected / b} if b else {"overlap": 0.0, "chance": 0.0}


def chance(first: int, second: int, size: int) -> float:
    """The IoU of two random masks of these sizes among `size` parameters, nearly: m / (a + b - m), m = a b / size.

    It puts the expected intersection m in place of the intersection.  IoU is convex in the
    intersection, so its true expectation is a little larger: by about 1 / max(a, b) of itself or
    less, and not at all where one of the masks is everything or nothing.
    """
    expected = _expected(first, second, size)
    union = first + second - expected
    return expected / union if union else 0.0


def _expected(first: int, second: int, size: int) -> float:
    """The mean of the hypergeometric distribution."""
    return first * second / size if size else 0.0


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of the ranks of two lists of scores, -1 to 1, ties sharing their mean rank; None if one side is constant."""
    from scipy.stats import spearmanr  # takes seconds to import

    return None if min(len({*first}), len({*second})) < 2 else float(spearmanr(first, second).statistic)
