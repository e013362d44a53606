"""Doubling masks: start with a few parameters and double the number in each round, so that masks of all sizes are nested."""

from math import ceil, log2

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.mask import GraftMask
from ..grafting.select import ranking
from ..settings import Positive
from .evidence import LocalizerInput
from .grown import gains_beyond
from .movement import movement_order
from .registry import Localizer, LocalizerSettings


class Doubling(LocalizerSettings):
    """Masks that grow to twice their size in every round."""

    start: Positive = Field(
        32, description="parameters of the first graft; each of log2(budget / start) rounds takes a gradient"
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return max(0, ceil(log2(size / self.start))) * rows


def rank_by_doubling(evidence: LocalizerInput, settings: Doubling, k: int) -> Tensor:
    """Region indices of k parameters: the first `settings.start` by movement, then in each round as many as there are so far.

    A round takes the gradient at the graft so far and adds those of the largest first-order gain, the largest first.
    """
    order = movement_order(evidence.pretrained, evidence.finetuned, evidence.region, min(settings.start, k))
    while len(order) < k:
        mask = GraftMask.from_region_indices(evidence.region, order)
        evidence.put_graft(mask)
        evidence.full_gradient()
        # already selected: ranked first, in any order
        ranks = ranking(evidence.region, gains_beyond(evidence, mask), min(k, 2 * len(order)))
        order = torch.cat([order, ranks[len(order) :].to(order.device)])
    return order


LOCALIZER = Localizer(
    "moved most, then twice as many by what the graft gains most from",
    rank_by_doubling,
    rank_needs_model=True,
    settings=Doubling,
    arrays=1,
)
