"""FISH: rank parameters by their empirical Fisher information before fine-tuning (Sung et al., 2021)."""

from pydantic import Field
from torch import Tensor

from ..grafting.select import ranking
from ..support.fields import Positive
from .evidence import LocalizerInput
from .registry import Localizer


class Fish(Localizer):
    """The parameters with the largest empirical Fisher information before fine-tuning."""

    needs_model = True

    examples: Positive = Field(1024, description="training examples, all if there are fewer.  FISH: 1024")

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters with the largest sum of squared gradients at theta_pre.

        The sum runs over `examples` training examples, each with its own gradient of -log p(label).  The fine-tuned values play no part.
        """
        evidence.put(evidence.pretrained)
        return ranking(evidence.region, evidence.squared_gradients(self.examples), k)


LOCALIZER = Fish
