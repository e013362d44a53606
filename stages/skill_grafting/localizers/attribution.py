"""Attribution: rank parameters by how much of the loss their own movement saves, to first order.

Moving parameter i by its share of the path from theta_pre to theta_ft lowers the loss by about
-dLoss/dtheta_i * delta_i, with delta = theta_ft - theta_pre.  Summed over points of the path this is
an integrated gradient: over the whole path its mean would add up to the loss that fine-tuning saved.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.select import ranking
from .localizer import Localizer, LocalizerInput


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
