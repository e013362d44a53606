"""Movement taken evenly from the layers: the same share of each at every k."""

from torch import Tensor

from ..metrics.composition import layer_of
from ..settings import Section
from .evidence import LocalizerInput
from .movement import rank_evenly
from .registry import Localizer


def rank_by_layer(evidence: LocalizerInput, _settings: Section, k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each layer; what is in no layer is one group."""
    return rank_evenly(evidence, layer_of, k)


LOCALIZER = Localizer("moved most, the same share of every layer", rank_by_layer)
