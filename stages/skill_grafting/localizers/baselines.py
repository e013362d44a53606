"""What the paper's masks are compared with: the localizers that learn nothing about the graft."""

import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.differences import Scratch, exact, is_same, places_of_change
from ..grafting.region import Region
from ..grafting.select import Elementwise, ranking
from ..support.fields import Positive
from .localizer import Localizer, LocalizerInput
from .movement import distance, movement

# below any distance: what didn't move at all
STILL = -1.0


class Bias(Localizer):
    """The biases that moved most, or all biases if there are fewer."""

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k biases, the parameters that BitFit trains, that moved most; all biases if there are fewer than k."""
        region, chosen = given.region, biases(given.region)
        moved = movement(given.pretrained, given.finetuned, region)
        # a score below any movement, expanded without memory
        scores = {name: torch.tensor(-1.0).expand(shape) for name, shape in region.shapes.items()}
        scores |= {name: moved[name].cpu() for name in chosen}
        return ranking(region, scores, min(k, sum(scores[name].numel() for name in chosen)))


class Fish(Localizer):
    """The parameters with the largest empirical Fisher information before fine-tuning."""

    needs_model = of_examples = True

    examples: Positive = Field(1024, description="training examples, all if there are fewer.  FISH: 1024")

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters with the largest sum of squared gradients at theta_pre (Sung et al., 2021).

        The sum runs over `examples` training examples, each with its own gradient of -log p(label).  The fine-tuned values play no part.
        """
        given.put(given.pretrained)
        return ranking(given.region, given.squared_gradients(self.examples), k)


class Lota(Localizer):
    """The parameters that moved most (a lottery ticket), or fewer if fewer moved."""

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters that moved most, fewer than k if fewer moved at all (LoTA, Panda et al., 2024).

        This is movement, the base of the paper's masks, but for a ticket never being padded with what fine-tuning left alone.
        """
        moved = Elementwise(given.region.shapes, partial(ticket, scratch=Scratch()), given.pretrained, given.finetuned)
        return ranking(given.region, moved, k, above=STILL)


class Magnitude(Localizer):
    """The parameters that were largest before fine-tuning."""

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k largest |theta_pre|, which never see the task."""
        region = given.region
        return ranking(region, Elementwise(region.shapes, size, given.pretrained), k)


class Random(Localizer):
    """Parameters drawn at random."""

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k highest places of a permutation, which every call draws anew.

        The permutation does not depend on k, so generators of equal seed give nested masks.
        """
        region = given.region
        places = torch.from_numpy(given.generator.permutation(region.size)).split(region.sizes)
        return ranking(region, dict(zip(region.shapes, places, strict=True)), k)


def biases(region: Region) -> list[str]:
    """Names of the region's biases, in its order."""
    return [name for name in region.shapes if name.rpartition(".")[2] == "bias"]


def ticket(before: Tensor, after: Tensor, scratch: Scratch) -> Tensor:
    """How far values moved, STILL of those that are the same; from 0.0 to -0.0 is a change over no distance.

    The values lie in `scratch`.  Only those are looked at whose bits differ, few of all after a gentle training.
    """
    after, alike = after.to(before.device), before.dtype == after.dtype
    before, after = before.reshape(-1), after.reshape(-1)
    places = (
        places_of_change(before, after).to(before.device) if alike else torch.arange(len(before), device=before.device)
    )
    ours, theirs = exact(before[places]), exact(after[places])
    same = is_same(ours, theirs)
    if not ours.is_complex():
        same &= ours.isnan() | (ours.signbit() == theirs.signbit())
    moved = distance(ours, theirs).masked_fill_(same, STILL)
    scores = scratch("ticket", before, moved.dtype).fill_(STILL)
    scores[places] = moved
    return scores


def size(values: Tensor) -> Tensor:
    """|theta|, of NaN 0."""
    sizes = exact(values).abs()
    return sizes if math.isfinite(sizes.sum()) else sizes.nan_to_num(0.0, math.inf)
