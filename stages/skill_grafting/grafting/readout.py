"""Uses of a mask besides grafting it: the read-outs, each a region's tensors.

graft: fine-tuned inside the mask, pretrained outside (paper, equation 1): is the region sufficient?
reset: pretrained inside, fine-tuned outside: is the region necessary?
prune: fine-tuned inside, 0 outside, a lottery ticket (paper, section 3): does it need the pretrained
    model around it?  In the paper even masks of 90 % fail this (figure 4b).
retrain: pretrained outside, trained anew inside, which takes data and a trainer (study/readouts.py).
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
