"""What the paper's masks are compared with: the localizers that learn nothing about the graft."""

import math

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.differences import exact, is_same
from ..grafting.region import Region
from ..grafting.select import Elementwise, ranking
from ..support.fields import Positive
from .localizer import Localizer, LocalizerInput
from .movement import distance, movement


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
        moved = Elementwise(given.region.shapes, ticket, given.pretrained, given.finetuned)
        return ranking(given.region, moved, min(k, sum(int((values >= 0).sum()) for values in moved.values())))


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


def ticket(before: Tensor, after: Tensor) -> Tensor:
    """How far values moved, and less than 0 of those that are the same; from 0.0 to -0.0 is a change over no distance."""
    before, after = exact(before), exact(after).to(before.device)
    same = is_same(before, after)
    if not before.is_complex():
        same &= before.isnan() | (before.signbit() == after.signbit())
    return distance(before, after).masked_fill_(same, -1)


def size(values: Tensor) -> Tensor:
    """|theta|, of NaN 0."""
    sizes = exact(values).abs()
    return sizes if math.isfinite(sizes.sum()) else sizes.nan_to_num(0.0, math.inf)
