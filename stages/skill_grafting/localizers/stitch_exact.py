"""This project's version of Localize-and-Stitch: learned from the whole budget by movement, with an l1 penalty, to exactly k.

It differs from `learned` in its settings alone: `base_share` 1, and an `l1` above 0.
"""

from pydantic import Field

from ..settings import Weight
from .learned import Learning, refine_by_learning
from .movement import rank_by_movement
from .registry import Localizer


class ExactStitching(Learning):
    """What differs from `learned`."""

    base_share: float = Field(1.0, ge=0, le=1)
    l1: Weight = 0.1


LOCALIZER = Localizer(
    "learned from all that moved most, with an l1 penalty",
    rank_by_movement,
    refine_by_learning,
    settings=ExactStitching,
    arrays=2,
)
