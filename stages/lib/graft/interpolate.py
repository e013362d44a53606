"""Weights on the straight line between two models (WiSE-FT; WiSE-graft: paper, section 4.2).

Both ends are copies, and so is everything that the two models share: blending two equal numbers as
(1 - alpha) * a + alpha * b would round them to a third.
"""

import torch
from torch import Tensor

from .apply import transplant, values_at
from .mask import GraftMask
from .region import Tensors


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
