"""Magnitude: rank parameters by their pretrained magnitude, a baseline that never sees the task."""

from torch import Tensor

from ..grafting.select import LazyTensors, ranking
from ..settings import Section
from .evidence import LocalizerInput
from .registry import Localizer


def rank_by_magnitude(evidence: LocalizerInput, _settings: Section, k: int) -> Tensor:
    """Region indices of the k largest |theta_pre|."""
    region = evidence.region
    return ranking(region, LazyTensors(region.shapes, lambda name: evidence.pretrained[name].abs()), k)


LOCALIZER = Localizer("largest before fine-tuning", rank_by_magnitude)
