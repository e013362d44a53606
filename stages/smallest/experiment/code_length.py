"""The code length of a graft, and the bound on its test error that follows.

A graft of signs is the pretrained model with some parameters moved by the same distance in a tensor, up or down.  Its code
names the number of parameters, which of the region's they are, a sign each, and a distance for each tensor that has any.  A
prefix code of L bits is a prior of 2^-L, fixed before any data, and by the Occam bound (Langford, 2005, theorem 4.6) with a
probability of at least 1 - delta, over the draw of n training rows, every such graft at once has a test error p with

    n * kl(training error, p) <= L * log 2 + log(1 / delta).
"""

import math

from scipy.optimize import brentq
from scipy.special import gammaln, rel_entr

SCALE_BITS = 32


def code_bits(selected: int, region: int, tensors: int) -> float:
    """Code length in bits of a graft of signs: `selected` of `region` parameters, in so many tensors.

    The number of parameters is one of 0..region; a new head, which is trained with the graft, is not in it.
    """
    choices = gammaln(region + 1) - gammaln(selected + 1) - gammaln(region - selected + 1)
    return math.log2(region + 1) + float(choices) / math.log(2) + selected + SCALE_BITS * tensors


def certified_error(error: float, rows: int, bits: float, delta: float) -> float:
    """The bound on the test error, within 0..1, of a model of so many bits with this training error.

    Raises ValueError unless rows is at least 1, 0 <= error <= 1 and 0 < delta < 1.
    """
    if rows < 1 or not 0 <= error <= 1 or not 0 < delta < 1:
        raise ValueError(f"no bound for an error of {error} on {rows} rows at delta = {delta}")
    room = _nats(bits, delta) / rows
    if error == 1 or _kl(error, 1 - 1e-12) <= room:
        return 1.0
    return float(brentq(lambda p: _kl(error, p) - room, error, 1 - 1e-12, xtol=1e-9))


def rows_for(error: float, target: float, bits: float, delta: float) -> int | None:
    """The fewest training rows at which a model with this training error is certified to err less than `target`; None if never."""
    return math.ceil(_nats(bits, delta) / _kl(error, target)) if error < target else None


def _nats(bits: float, delta: float) -> float:
    return bits * math.log(2) + math.log(1 / delta)


def _kl(first: float, second: float) -> float:
    """Relative entropy of two coins, in nats."""
    return float(rel_entr(first, second) + rel_entr(1 - first, 1 - second))
