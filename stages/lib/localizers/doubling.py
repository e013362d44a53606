"""Doubling masks: growth from a few parameters, every round as many again, so that masks of all sizes are nested."""

import torch
from torch import Tensor

from ..graft.mask import GraftMask
from ..graft.select import ranking
from .evidence import Evidence
from .grown import gains_beyond
from .movement import movement_order
from .registry import Localizer
from .settings import Doubling


def rank_by_doubling(evidence: Evidence, settings: Doubling, k: int) -> Tensor:
    """Region indices of k parameters: the first `settings.start` by movement, then in each round as many as there are so far.

    A round takes the gradient at the graft so far and adds those of the largest first-order gain, the largest first.
    """
    order = movement_order(evidence.pretrained, evidence.finetuned, evidence.region, min(settings.start, k))
    while len(order) < k:
        mask = GraftMask.from_region_indices(evidence.region, order)
        evidence.put_graft(mask)
        evidence.full_gradient()
        # ranked first, in whatever order: what is in already
        ranks = ranking(evidence.region, gains_beyond(evidence, mask), min(k, 2 * len(order)))
        order = torch.cat([order, ranks[len(order) :].to(order.device)])
    return order


LOCALIZER = Localizer(
    "moved most, then twice as many by what the graft gains most from", rank_by_doubling, rank_needs_model=True
)
