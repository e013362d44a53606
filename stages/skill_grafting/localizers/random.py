"""Random parameters: the control of every other localizer."""

import torch
from torch import Tensor

from ..grafting.select import ranking
from .evidence import LocalizerInput
from .registry import Localizer


class Random(Localizer):
    """Parameters drawn at random."""

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k highest places of a permutation, which every call draws anew.

        The permutation does not depend on k, so generators of equal seed give nested masks.
        """
        region = evidence.region
        places = torch.from_numpy(evidence.generator.permutation(region.size)).split(region.sizes)
        return ranking(region, dict(zip(region.shapes, places, strict=True)), k)


LOCALIZER = Random
