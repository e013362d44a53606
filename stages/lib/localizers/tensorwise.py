"""Movement taken evenly from the tensors: the same share of each at every k."""

from torch import Tensor

from ..graft.select import ranking
from ..settings import Section
from .evidence import Evidence
from .registry import Localizer
from .stratified import even_scores


def rank_by_tensor(evidence: Evidence, _settings: Section, k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each tensor."""
    return ranking(evidence.region, even_scores(evidence, lambda name: name), k)


LOCALIZER = Localizer("moved most, the same share of every tensor", rank_by_tensor)
