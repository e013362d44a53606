"""The smallest size that is enough, by bisection on a logarithmic scale."""

import math
from collections.abc import Callable


def smallest_enough(enough: Callable[[int], bool], largest: int, precision: float) -> int | None:
    """A size from 1 to `largest` that is enough while one at most `precision` times smaller (or by 1) is not; None if none is.

    Where enough(n) implies enough(n + 1) it is, up to the precision, the smallest; else it is one place of several at which
    enough begins.  0 counts as too small without a try.
    """
    if largest < 1 or not enough(largest):
        return None
    short, found = 0, largest
    while found > max(short + 1, precision * short):
        middle = min(max(round(math.sqrt(max(short, 1) * found)), short + 1), found - 1)
        if enough(middle):
            found = middle
        else:
            short = middle
    return found


def most_looks(largest: int, precision: float) -> int:
    """The largest number of sizes that smallest_enough tries."""
    return 2 + max(0, math.ceil(math.log2(max(math.log(largest), 1e-9) / math.log(min(precision, 2)))))
