"""Grafting itself (paper, equation 1): fine-tuned values inside the mask, pretrained ones outside.

Values are copied, never recomputed from a difference, so a graft of everything is the fine-tuned
model bit for bit, and a graft of nothing the pretrained one.
"""

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Tensors


def graft(pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region: new tensors, one for each name of the region; the inputs stay as they are."""
    return transplant(pretrained, values_at(finetuned, mask), mask)


def graft_into(weights: Tensors, pretrained: Tensors, finetuned: Tensors, mask: GraftMask) -> None:
    """Set live weights to the graft of a mask, in place and on their device."""
    for name in mask.region.shapes:
        weights[name].data.copy_(pretrained[name])
        if name in mask.indices:
            at = mask.indices[name].to(weights[name].device)
            weights[name].data.view(-1)[at] = finetuned[name].reshape(-1)[at].to(weights[name].dtype)


def values_at(tensors: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The values a mask selects: name -> shape (number selected there,), a copy."""
    return {name: tensors[name].detach().reshape(-1)[indices] for name, indices in mask.indices.items()}


def transplant(pretrained: Tensors, values: Tensors, mask: GraftMask) -> dict[str, Tensor]:
    """The grafted region from the selected values alone, without the fine-tuned model."""
    grafted = {}
    for name in mask.region.shapes:
        grafted[name] = pretrained[name].detach().clone(memory_format=torch.contiguous_format)
        if name in mask.indices:
            grafted[name].view(-1)[mask.indices[name]] = values[name].to(grafted[name].dtype)
    return grafted
