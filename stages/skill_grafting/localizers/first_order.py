"""First-order methods: what the loss gains, to first order, by moving a parameter from its pretrained to its fine-tuned value.

Moving parameter i by its share of the path from theta_pre to theta_ft lowers the loss by about
-dLoss/dtheta_i * delta_i, with delta = theta_ft - theta_pre.

Attribution sums this over points of the path, an integrated gradient: over the whole path its mean would add up to the loss that
fine-tuning saved.  Grown masks start small and add, in rounds, the parameters with the largest gain at the current graft.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.apply import graft_into, put_at
from ..grafting.mask import GraftMask
from ..grafting.region import LazyTensors
from ..grafting.select import ranking, top_k
from ..support.fields import Positive
from .localizer import Budget, Localizer, LocalizerInput
from .movement import Movement

# The start is this part of the budget; the rounds add the rest in equal portions.
START_PART = 3


class Attribution(Localizer):
    """The parameters whose movement lowers the loss most, to first order."""

    needs_model = True

    path_points: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        [0.0, 0.1, 0.3],
        min_length=1,
        description="points between pretrained (0) and fine-tuned (1) where it takes a gradient",
    )
    sign: Literal["signed", "magnitude"] = Field("magnitude", description="signed: harmful movement comes last")

    def steps_for(self, masks: int) -> int:
        """A gradient for each point, whatever the masks."""
        return len(self.path_points)

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters with the largest attribution: of the loss saved, or (magnitude) of its size either way."""
        scores, magnitude = attribution(given, self.path_points), self.sign == "magnitude"
        scores = {name: score.abs_() if magnitude else score for name, score in scores.items()}
        return ranking(given.region, scores, k)


def attribution(given: LocalizerInput, path_points: list[float]) -> dict[str, Tensor]:
    """-sum over alpha of dLoss/dtheta(pretrained + alpha * delta) * delta of every parameter; a pass over the data for each."""
    scores = {name: torch.zeros_like(weight) for name, weight in given.weights.items()}
    for alpha in path_points:
        for name, weight in given.weights.items():
            torch.lerp(given.pretrained[name], given.finetuned[name], alpha, out=weight.data)
        given.full_gradient()
        given.on_step()
        for name, weight in given.weights.items():
            scores[name].sub_(weight.grad)
    return {name: score.mul_(given.finetuned[name] - given.pretrained[name]) for name, score in scores.items()}


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
