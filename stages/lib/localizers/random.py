"""Random places: what any k parameters would do, the control of every other localizer."""

from typing import Any

import torch
from torch import Tensor

from stages.lib.graft.select import ranking
from stages.lib.localizers.evidence import Evidence


def rank_by_chance(evidence: Evidence, _settings: Any, k: int) -> Tensor:
    """Region indices of the k highest places of a permutation, which every call draws anew.

    The permutation does not depend on k, so generators of equal seed give nested masks.
    """
    region = evidence.region
    places = torch.from_numpy(evidence.generator.permutation(region.size)).split(region.sizes)
    return ranking(region, dict(zip(region.shapes, places, strict=True)), k)
