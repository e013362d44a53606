"""Biases only: the parameters that BitFit trains, ranked by movement."""

import torch
from torch import Tensor

from ..grafting.region import Region
from ..grafting.select import ranking
from .evidence import LocalizerInput
from .movement import movement
from .registry import Localizer


def biases(region: Region) -> list[str]:
    """Names of the region's biases, in its order."""
    return [name for name in region.shapes if name.rpartition(".")[2] == "bias"]


class Bias(Localizer):
    """The biases that moved most, or all biases if there are fewer."""

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k biases that moved most; all biases if there are fewer than k."""
        region, chosen = evidence.region, biases(evidence.region)
        moved = movement(evidence.pretrained, evidence.finetuned, region)
        # a score below any movement, expanded without memory
        scores = {name: torch.tensor(-1.0).expand(shape) for name, shape in region.shapes.items()}
        scores |= {name: moved[name].cpu() for name in chosen}
        return ranking(region, scores, min(k, sum(scores[name].numel() for name in chosen)))


LOCALIZER = Bias
