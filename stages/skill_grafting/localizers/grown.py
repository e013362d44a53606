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
from .localizer import Budget, LocalizerInput
from .movement import Movement

# The start is this part of the budget; the rounds add the rest in equal portions.
START_PART = 3


class Grown(Movement):
    """The parameters that moved most, then those that the graft gains most from."""

    needs_model = True

    rounds: Positive = Field(3, description="gradients, each at the graft so far")

    def steps_for(self, masks: int) -> int:
        """A round is a step."""
        return masks * self.rounds

    def refine(self, given: LocalizerInput, order: Tensor, budget: Budget) -> GraftMask:
        """The mask of budget.k parameters: the first third of the budget by movement, the others added in rounds.

        Each of `rounds` rounds takes the gradient at the current graft and adds those with the largest -dLoss/dtheta * delta, the
        first-order gain of grafting them too.
        """
        k, start = budget.k, budget.k // START_PART
        mask = GraftMask.from_region_indices(given.region, order[:start])
        for number in range(1, self.rounds + 1):
            mask = grown_to(given, mask, start + (k - start) * number // self.rounds)
            given.on_step()
        return mask


def grown_to(given: LocalizerInput, mask: GraftMask, size: int) -> GraftMask:
    """The mask grown to `size` parameters by the largest first-order gain at its graft."""
    graft_into(given.weights, given.pretrained, given.finetuned, mask)
    given.full_gradient()

    def gain(name: str) -> Tensor:
        gained = (given.pretrained[name] - given.finetuned[name]).mul_(given.weights[name].grad)
        if name in mask.indices:
            put_at(gained, mask.indices[name], torch.tensor(math.inf))
        return gained

    return top_k(given.region, LazyTensors(given.region.shapes, gain), size)
