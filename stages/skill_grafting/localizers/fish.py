"""FISH: rank parameters by their empirical Fisher information before fine-tuning (Sung et al., 2021)."""

from pydantic import Field
from torch import Tensor

from ..grafting.select import ranking
from ..settings import Positive
from .evidence import LocalizerInput
from .registry import Localizer, LocalizerSettings


class Fish(LocalizerSettings):
    """Settings of FISH."""

    examples: Positive = Field(1024, description="training examples, all if there are fewer.  FISH: 1024")


def rank_by_fisher(evidence: LocalizerInput, settings: Fish, k: int) -> Tensor:
    """Region indices of the k parameters with the largest sum of squared gradients at theta_pre.

    The sum runs over `settings.examples` training examples, each with its own gradient of
    -log p(label).  The fine-tuned values play no part.
    """
    evidence.put(evidence.pretrained)
    return ranking(evidence.region, evidence.squared_gradients(settings.examples), k)


LOCALIZER = Localizer(
    "largest empirical Fisher information before fine-tuning",
    rank_by_fisher,
    rank_needs_model=True,
    settings=Fish,
)
