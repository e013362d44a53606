"""Movement taken evenly from the tensors: the same share of each at every k."""

from torch import Tensor

from ..settings import Section
from .evidence import LocalizerInput
from .movement import rank_evenly
from .registry import Localizer


def rank_by_tensor(evidence: LocalizerInput, _settings: Section, k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each tensor."""
    return rank_evenly(evidence, lambda name: name, k)


LOCALIZER = Localizer("moved most, the same share of every tensor", rank_by_tensor)
