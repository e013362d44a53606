"""TaLoS: the parameters that the pretrained model's output is least sensitive to (Iurada et al., 2025).

Sensitivity is the diagonal Fisher information at the pretrained weights.  The least sensitive ones are found in rounds:
each keeps the least sensitive of those still in, fewer every time, and scores them anew while the parameters that are
out are attenuated.  The number kept in round r of R is floor(share^(r/R) * N) of all N parameters, and not of those
still in, so the last round has the share that was asked for.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.apply import put_at, take_at
from ..grafting.mask import GraftMask
from ..grafting.region import Tensors
from ..grafting.select import top_k
from ..support.fields import Positive
from .localizer import Budget, Localizer, LocalizerInput


class Talos(Localizer):
    """The parameters that the model is least sensitive to before fine-tuning, found in rounds."""

    needs_model = of_examples = True

    examples: Positive = Field(64, description="training examples that it is measured on.  TaLoS: 32 or more")
    mode: Literal["expected", "sampled", "empirical", "sampled_logit", "label_logit"] = Field(
        "sampled",
        description="whose gradient is squared: of the model's own labels, of the true one, or of a raw logit.  TaLoS: sampled",
    )
    draws: int = Field(
        1, ge=1, le=100_000, description="labels drawn for each example, of the sampled modes.  TaLoS: 1"
    )
    rounds: int = Field(4, ge=1, le=100, description="rounds in which the least sensitive are found.  TaLoS: 4")
    attenuation: float = Field(
        0.1, ge=0, le=1, description="what weights that are out are multiplied by (rho).  TaLoS: 0.1"
    )

    def steps_for(self, masks: int) -> int:
        """A round is a step."""
        return masks * self.rounds

    def refine(self, given: LocalizerInput, order: Tensor | None, budget: Budget) -> GraftMask:
        """The budget.k least sensitive after `rounds` rounds; the weights are the pretrained ones again."""
        *_, mask = calibrate(given, self, budget)
        return mask


def calibrate(given: LocalizerInput, settings: Talos, budget: Budget) -> Iterator[GraftMask]:
    """The mask of every round, each within the one before, the last of exactly budget.k parameters.

    From the second round on the weights that are out are `settings.attenuation` (rho) times
    the pretrained ones: 1 only scores again, 0 prunes.
    """
    region, mask = given.region, GraftMask.full(given.region)
    for size in round_sizes(region.size, budget, settings.rounds):
        put_attenuated(given, mask, settings.attenuation)
        mask = least_sensitive(sensitivity(given, settings), mask, size)
        given.on_step()
        yield mask
    given.put(given.pretrained)


def round_sizes(size: int, budget: Budget, rounds: int) -> list[int]:
    """Parameters kept after each round: floor(share^(r / rounds) * size), the last one budget.k exactly.

    The share is the one that was asked for, not k / size, which is a little smaller where k was rounded down.
    """
    share = budget.k / size if budget.share is None else budget.share
    return [max(budget.k, int(share ** (number / rounds) * size + 1e-6)) for number in range(1, rounds)] + [budget.k]


def sensitivity(given: LocalizerInput, settings: Talos) -> Tensors:
    """The sum over examples of every parameter's squared gradients, with the weights as they are."""
    return given.squared_gradients(settings.examples, settings.mode, settings.draws, given.generator)


def least_sensitive(scores: Tensors, among: GraftMask, k: int) -> GraftMask:
    """The k lowest scores within a mask, ties by region index; raises ValueError if the mask has fewer."""
    if k > among.selected:
        raise ValueError(f"{k} parameters were asked for, of {among.selected}")
    inside = {name: torch.full_like(scores[name], -torch.inf) for name in among.region.shapes}
    for name, indices in among.indices.items():
        put_at(inside[name], indices, -take_at(scores[name], indices))
    return top_k(among.region, inside, k)


def put_attenuated(given: LocalizerInput, alive: GraftMask, factor: float) -> None:
    """Set the weights to the pretrained ones, those outside a mask times a factor; in place."""
    for name, weight in given.weights.items():
        weight.data.copy_(given.pretrained[name]).mul_(factor)
        if name in alive.indices:
            put_at(weight.data, alive.indices[name], take_at(given.pretrained[name], alive.indices[name]))
