"""Grown masks: start small and add, in rounds, the parameters with the largest first-order gain at the current graft."""

import math

import torch
from pydantic import Field
from torch import Tensor

from ..errors import ParamsError
from ..grafting.apply import put_at
from ..grafting.mask import GraftMask
from ..grafting.select import LazyTensors, RunningSelection
from ..settings import Positive
from .evidence import LocalizerInput
from .movement import movement_mask, rank_by_movement
from .registry import Budget, FoundMask, Localizer, LocalizerSettings

# The start is this part of the budget; the rounds add the rest in equal portions.
START_PART = 3
ERROR = 0.05


class Grown(LocalizerSettings):
    """Masks that grow in rounds."""

    rounds: Positive = Field(3, description="gradients, each at the graft so far")
    enough: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="agreement with the fine-tuned model at which growth ends before its budget, if dev shows at least as "
        "much with 95 % confidence (too much where dev also chose that model); null: never",
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return self.rounds * rows


def grow(evidence: LocalizerInput, settings: Grown, order: Tensor, budget: Budget) -> FoundMask:
    """The mask of budget.k parameters: the first third of the budget from `order`, the others added in rounds.

    Each of `settings.rounds` rounds takes the gradient at the current graft and adds those with
    the largest -dLoss/dtheta * delta, the first-order gain of grafting them too.  With `settings.enough` it ends as soon as
    the graft is shown on dev to agree that well with the fine-tuned model; then the mask is smaller, and its file says `rounds`
    and `agreement`, the lower bound.
    """
    if settings.enough is not None and evidence.dev_rating is None:
        raise ParamsError("enough: looks at rows for choosing (dev), and there are none; leave it out")
    k, start = budget.k, budget.k // START_PART
    mask = movement_mask(evidence.region, order, start)
    for number in range(1, settings.rounds + 1):
        if settings.enough is not None:
            agreement = certified_agreement(evidence, mask, settings.rounds)
            if agreement >= settings.enough:
                return FoundMask(mask, {"rounds": number - 1, "agreement": agreement})
        mask = grown_to(evidence, mask, start + (k - start) * number // settings.rounds)
    return FoundMask(mask)


def grown_to(evidence: LocalizerInput, mask: GraftMask, size: int) -> GraftMask:
    """The mask grown to `size` parameters by the largest first-order gain at its graft."""
    best, starts = RunningSelection(size), evidence.region.starts

    def take(name: str, _point: int, gradient: Tensor) -> None:
        best.add(_gain_beyond(evidence, mask, name, gradient), starts[name])

    evidence.each_gradient([lambda: evidence.put_graft(mask)], take)
    return GraftMask.from_region_indices(evidence.region, best.order())


def certified_agreement(evidence: LocalizerInput, mask: GraftMask, looks: int) -> float:
    """The share of rows like those of dev on which the graft of a mask predicts as the fine-tuned model, at the least.

    Binomial bound (Clopper and Pearson), with a confidence of 95 % for all of so many looks together, for this model on these
    dev rows: where fine-tuning's grid or `eval_steps` chose the model on the same rows, it is no guarantee for others.
    """
    from scipy.stats import binomtest

    evidence.put_graft(mask)
    same = round(evidence.dev_rating().agreement * evidence.dev_rows)
    bound = binomtest(same, evidence.dev_rows, alternative="greater").proportion_ci(1 - ERROR / looks, "exact")
    return float(bound.low)


def gains_beyond(evidence: LocalizerInput, mask: GraftMask) -> LazyTensors:
    """-dLoss/dtheta * delta from the current gradients, infinite inside the mask; one tensor at a time."""
    weights = evidence.weights
    return LazyTensors(weights, lambda name: _gain_beyond(evidence, mask, name, weights[name].grad))


def _gain_beyond(evidence: LocalizerInput, mask: GraftMask, name: str, gradient: Tensor) -> Tensor:
    gain = (evidence.pretrained[name] - evidence.finetuned[name]).mul_(gradient)
    if name in mask.indices:
        put_at(gain, mask.indices[name], torch.tensor(math.inf))
    return gain


LOCALIZER = Localizer("moved most, then what the graft gains most from", rank_by_movement, grow, settings=Grown)
