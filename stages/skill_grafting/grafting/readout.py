"""Uses of a mask besides grafting it: the read-outs, each a region's tensors, and weights between two models.

graft: fine-tuned inside the mask, pretrained outside (paper, equation 1): is the region sufficient?
reset: pretrained inside, fine-tuned outside: is the region necessary?
prune: fine-tuned inside, 0 outside, a lottery ticket (paper, section 3): does it need the pretrained
    model around it?  In the paper even masks of 90 % fail this (figure 4b).
retrain: pretrained outside, trained anew inside, which takes data and a trainer.

Weights on the straight line between two models are WiSE-FT, and between the pretrained model and a graft WiSE-graft (paper, section
4.2).  Both ends are copies, and so is everything that the two share: blending two equal numbers as (1 - alpha) * a + alpha * b would
round them to a third.
"""

import torch
from torch import Tensor

from .apply import transplant, values_at
from .mask import GraftMask
from .region import Tensors

GRAFT, RETRAIN, RESET, PRUNE = "graft", "retrain", "reset", "prune"
READOUTS = (GRAFT, RETRAIN, RESET, PRUNE)


def reset(finetuned: Tensors, pretrained: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The fine-tuned region with the mask's entries at their pretrained values: a graft of all others."""
    return transplant(finetuned, values_at(pretrained, mask), mask)


def prune(finetuned: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The fine-tuned region with 0 wherever the mask selects nothing."""
    nothing = {name: torch.zeros_like(finetuned[name]) for name in mask.region.shapes}
    return transplant(nothing, values_at(finetuned, mask), mask)


def wise_ft(pretrained: Tensors, finetuned: Tensors, alpha: float) -> dict[str, Tensor]:
    """pretrained + alpha * (finetuned - pretrained) for every name: new tensors, bit-exact at alpha 0 and 1.

    Whole numbers have nothing in between and stay pretrained below alpha 1.  A new head has no
    pretrained values: leave it out and keep it trained.  Raises ValueError unless alpha is within 0..1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be within 0..1, not {alpha}")
    return {name: _between(values.detach(), finetuned[name].detach(), alpha) for name, values in pretrained.items()}


def wise_graft(pretrained: Tensors, finetuned: Tensors, mask: GraftMask, alpha: float) -> dict[str, Tensor]:
    """pretrained + alpha * mask * (finetuned - pretrained): from the pretrained region to the graft.

    New tensors, bitwise pretrained outside the mask for every alpha.  Raises ValueError unless alpha is within 0..1.
    """
    return transplant(pretrained, wise_ft(values_at(pretrained, mask), values_at(finetuned, mask), alpha), mask)


def _between(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    if alpha == 1:
        return end.clone()
    if alpha == 0 or not start.is_floating_point():
        return start.clone()
    return torch.where(start == end, start, torch.lerp(start, end, alpha))
