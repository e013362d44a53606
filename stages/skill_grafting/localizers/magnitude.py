"""Magnitude: rank parameters by their pretrained magnitude, a baseline that never sees the task."""

import math

from torch import Tensor

from ..grafting.differences import exact
from ..grafting.select import Elementwise, ranking
from .evidence import LocalizerInput
from .registry import Localizer


class Magnitude(Localizer):
    """The parameters that were largest before fine-tuning."""

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k largest |theta_pre|."""
        region = evidence.region
        return ranking(region, Elementwise(region.shapes, size, evidence.pretrained), k)


def size(values: Tensor) -> Tensor:
    """|theta|, of NaN 0."""
    sizes = exact(values).abs()
    return sizes if math.isfinite(sizes.sum()) else sizes.nan_to_num(0.0, math.inf)


LOCALIZER = Magnitude
