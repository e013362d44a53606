"""Movement taken evenly from the layers: the same share of each at every k."""

from torch import Tensor

from ..settings import Section
from .evidence import Evidence
from .movement import rank_evenly
from .registry import Localizer


def layer_of(name: str) -> int | None:
    """Number of the block that a parameter is in: its first all-digit component; None outside the blocks."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def rank_by_layer(evidence: Evidence, _settings: Section, k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each layer; what is in no layer is one group."""
    return rank_evenly(evidence, layer_of, k)


LOCALIZER = Localizer("moved most, the same share of every layer", rank_by_layer)
