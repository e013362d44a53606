"""Grown masks: start small and add, in rounds, the parameters with the largest first-order gain at the current graft."""

import math

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.apply import graft_into, put_at
from ..grafting.mask import GraftMask
from ..grafting.region import LazyTensors
from ..grafting.select import top_k
from ..support.fields import Positive
from .evidence import LocalizerInput
from .movement import Movement
from .registry import Budget

# The start is this part of the budget; the rounds add the rest in equal portions.
START_PART = 3


class Grown(Movement):
    """The parameters that moved most, then those that the graft gains most from."""

    needs_model = True

    rounds: Positive = Field(3, description="gradients, each at the graft so far")

    def refine(self, evidence: LocalizerInput, order: Tensor, budget: Budget) -> GraftMask:
        """The mask of budget.k parameters: the first third of the budget by movement, the others added in rounds.

        Each of `rounds` rounds takes the gradient at the current graft and adds those with the largest -dLoss/dtheta * delta, the
        first-order gain of grafting them too.
        """
        k, start = budget.k, budget.k // START_PART
        mask = GraftMask.from_region_indices(evidence.region, order[:start])
        for number in range(1, self.rounds + 1):
            mask = grown_to(evidence, mask, start + (k - start) * number // self.rounds)
        return mask


def grown_to(evidence: LocalizerInput, mask: GraftMask, size: int) -> GraftMask:
    """The mask grown to `size` parameters by the largest first-order gain at its graft."""
    graft_into(evidence.weights, evidence.pretrained, evidence.finetuned, mask)
    evidence.full_gradient()

    def gain(name: str) -> Tensor:
        gained = (evidence.pretrained[name] - evidence.finetuned[name]).mul_(evidence.weights[name].grad)
        if name in mask.indices:
            put_at(gained, mask.indices[name], torch.tensor(math.inf))
        return gained

    return top_k(evidence.region, LazyTensors(evidence.region.shapes, gain), size)


LOCALIZER = Grown
