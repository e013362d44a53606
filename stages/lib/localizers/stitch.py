"""The mask of Localize-and-Stitch (He et al., 2025) as its authors learn it: a tiny base, and an l1 penalty on what comes in.

Their data-free variant takes the 5 % that moved most: the localizer `movement` at 0.05.
"""

from torch import Tensor

from ..graft.mask import GraftMask
from .evidence import Evidence
from .learned import learn_from
from .movement import rank_by_movement
from .registry import Budget, FoundMask, Localizer
from .settings import Stitching


def refine_by_stitching(evidence: Evidence, settings: Stitching, order: Tensor, budget: Budget) -> FoundMask:
    """Scores that end above the threshold, at most the budget, learned from the `base_share` that moved most."""
    base = GraftMask.from_region_indices(evidence.region, order[: evidence.region.budget(settings.base_share)])
    return learn_from(base, evidence, settings, Budget(budget.k, "threshold", budget.share))


LOCALIZER = Localizer(
    "learned from the very few that moved most, with an l1 penalty", rank_by_movement, refine_by_stitching
)
