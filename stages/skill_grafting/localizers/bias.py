"""Biases only: the parameters that BitFit trains, ranked by movement."""

import torch
from torch import Tensor

from ..grafting.region import Region
from ..grafting.select import ranking
from ..settings import Section
from .evidence import LocalizerInput
from .registry import Localizer


def biases(region: Region) -> list[str]:
    """Names of the region's biases, in its order."""
    return [name for name in region.shapes if name.rpartition(".")[2] == "bias"]


def rank_biases(evidence: LocalizerInput, _settings: Section, k: int) -> Tensor:
    """Region indices of the k biases that moved most; all biases if there are fewer than k."""
    region, chosen = evidence.region, biases(evidence.region)
    # a score below any movement, expanded without memory
    scores = {name: torch.tensor(-1.0).expand(shape) for name, shape in region.shapes.items()}
    scores |= {name: (evidence.finetuned[name] - evidence.pretrained[name]).abs().cpu() for name in chosen}
    return ranking(region, scores, min(k, sum(scores[name].numel() for name in chosen)))


LOCALIZER = Localizer("biases that moved most; fewer if there are fewer", rank_biases)
