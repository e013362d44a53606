"""The mask of Localize-and-Stitch (He et al., 2025) as its authors learn it: a tiny base, and an l1 penalty on what comes in.

Their data-free variant takes the 5 % that moved most: the localizer `movement` at 0.05.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from ..grafting.mask import GraftMask
from ..settings import Count, Rate, Weight
from .evidence import LocalizerInput
from .learned import Learning, learn_from
from .movement import rank_by_movement
from .registry import Budget, FoundMask, Localizer


class Stitching(Learning):
    """As its authors learn: `base_share` is a share of the region here."""

    base_share: float = Field(1e-5, ge=0, le=1, description="size of the base as a share of the region")
    offset: float = Field(5.0, gt=0, le=12)
    l1: Weight = 6.25e-7
    steps: Count = 10
    rate_kind: Literal["relative", "absolute"] = "absolute"
    learning_rate: Rate = 1.6e7
    select: Literal["last", "authors"] = "last"


def refine_by_stitching(evidence: LocalizerInput, settings: Stitching, order: Tensor, budget: Budget) -> FoundMask:
    """Scores that end above the threshold, at most the budget, learned from the `base_share` that moved most."""
    base = GraftMask.from_region_indices(evidence.region, order[: evidence.region.budget(settings.base_share)])
    return learn_from(base, evidence, settings, Budget(budget.k, "threshold", budget.share))


LOCALIZER = Localizer(
    "learned from the very few that moved most, with an l1 penalty",
    rank_by_movement,
    refine_by_stitching,
    settings=Stitching,
)
