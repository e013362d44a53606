"""Movement taken evenly from the tensors: the same share of each at every k."""

from torch import Tensor

from stages.lib.graft.select import ranking
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.registry import Localizer
from stages.lib.localizers.stratified import even_scores
from stages.lib.settings import Section


def rank_by_tensor(evidence: Evidence, _settings: Section, k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each tensor."""
    return ranking(evidence.region, even_scores(evidence, lambda name: name), k)


LOCALIZER = Localizer("moved most, the same share of every tensor", rank_by_tensor)
