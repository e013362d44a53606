"""LoTA: a lottery ticket, the parameters that moved most (Panda et al., 2024).

This is movement, the base of the paper's masks, but for a ticket never being padded with parameters that
fine-tuning left alone.
"""

from torch import Tensor

from ..grafting.select import ranking
from .evidence import LocalizerInput
from .movement import movement
from .registry import Localizer


class Lota(Localizer):
    """The parameters that moved most (a lottery ticket), or fewer if fewer moved."""

    def rank(self, evidence: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters that moved most, fewer than k if fewer moved at all."""
        moved = movement(evidence.pretrained, evidence.finetuned, evidence.region)
        return ranking(evidence.region, moved, min(k, sum(int((values > 0).sum()) for values in moved.values())))


LOCALIZER = Lota
