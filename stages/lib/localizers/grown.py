"""Grown masks: start small and add, in rounds, what the graft so far would gain most from."""

import math

from torch import Tensor

from stages.lib.graft.mask import GraftMask
from stages.lib.graft.select import top_k
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.movement import movement_mask, rank_by_movement
from stages.lib.localizers.registry import Budget, FoundMask, Localizer
from stages.lib.localizers.settings import Grown

# The start is this part of the budget; the rounds add the rest in equal portions.
START_PART = 3


def grow(evidence: Evidence, settings: Grown, order: Tensor, budget: Budget) -> FoundMask:
    """The mask of budget.k parameters: the first third of the budget from `order`, the others added in rounds.

    Each of `settings.rounds` rounds takes the gradient at the current graft and adds those with
    the largest -dLoss/dtheta * delta, the first-order gain of grafting them too.
    """
    k, start = budget.k, budget.k // START_PART
    mask = movement_mask(evidence.region, order, start)
    for number in range(1, settings.rounds + 1):
        evidence.put_graft(mask)
        evidence.full_gradient()
        mask = _extended(evidence, mask, start + (k - start) * number // settings.rounds)
    return FoundMask(mask)


def _extended(evidence: Evidence, mask: GraftMask, k: int) -> GraftMask:
    # kept in the weights, which the next round sets anew: no array beyond the two models
    gains = {name: weight.data for name, weight in evidence.weights.items()}
    for name, gain in gains.items():
        gain.copy_(evidence.pretrained[name]).sub_(evidence.finetuned[name]).mul_(evidence.weights[name].grad)
        if name in mask.indices:
            gain.view(-1)[mask.indices[name].to(gain.device)] = math.inf
    return top_k(evidence.region, gains, k)


LOCALIZER = Localizer("moved most, then what the graft gains most from", rank_by_movement, grow)
