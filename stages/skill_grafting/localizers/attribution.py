"""Attribution: rank parameters by how much of the loss their own movement saves, to first order.

Moving parameter i by its share of the path from theta_pre to theta_ft lowers the loss by about
-dLoss/dtheta_i * delta_i, with delta = theta_ft - theta_pre.  Summed over points of the path this is
an integrated gradient: over the whole path its mean would add up to the loss that fine-tuning saved.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.select import RunningSelection
from .evidence import LocalizerInput
from .registry import Localizer


class Attribution(Localizer):
    """Gradients on the path from the pretrained to the fine-tuned model."""

    about = "saves most loss, to first order"
    needs_model = True

    path_points: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        [0.0, 0.1, 0.3],
        min_length=1,
        description="points between pretrained (0) and fine-tuned (1) where it takes a gradient",
    )
    sign: Literal["signed", "magnitude"] = Field("magnitude", description="signed: harmful movement comes last")

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters with the largest attribution: of the loss saved, or (magnitude) of its size either way."""
        best, starts = RunningSelection(k), evidence.region.starts

        def use(name: str, score: Tensor) -> None:
            best.add(score.abs_() if self.sign == "magnitude" else score, starts[name])

        each_attribution(evidence, self.path_points, use)
        return best.order()


def each_attribution(evidence: LocalizerInput, path_points: list[float], use: Callable[[str, Tensor], object]) -> None:
    """Call use(name, score) with -sum over alpha of dLoss/dtheta(pretrained + alpha * delta) * delta, tensor by tensor.

    One pass over the data for each alpha; each tensor's score is freed after use.
    """
    scores: dict[str, Tensor] = {}

    def take(name: str, point: int, gradient: Tensor) -> None:
        if point == 0:
            scores[name] = torch.zeros_like(gradient)
        scores[name].sub_(gradient)
        if point == len(path_points) - 1:
            use(name, scores.pop(name).mul_(evidence.finetuned[name] - evidence.pretrained[name]))

    evidence.each_gradient([partial(evidence.put_between, alpha) for alpha in path_points], take)


LOCALIZER = Attribution
