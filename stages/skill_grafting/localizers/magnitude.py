"""Magnitude: rank parameters by their pretrained magnitude, a baseline that never sees the task."""

from torch import Tensor

from ..grafting.region import Elementwise
from ..grafting.select import ranking
from .evidence import LocalizerInput
from .registry import Localizer


class Magnitude(Localizer):
    """Those that were largest before fine-tuning."""

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k largest |theta_pre|."""
        region = evidence.region
        return ranking(region, Elementwise(region.shapes, Tensor.abs, evidence.pretrained), k)


LOCALIZER = Magnitude
