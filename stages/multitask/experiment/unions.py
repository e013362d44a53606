"""Unions of regions (paper, section 5.1): one graft for a group of tasks.

A union is purified by a few gradient steps on the loss of all its tasks: the mask is learned as a
single task's is (skill_grafting/localizers/learned.py), but it starts from the union as its base, and for the sum
of the tasks' losses.  It ends with as many parameters as the union had, so what it gains isn't size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.localizers.evidence import LocalizerInput
from skill_grafting.localizers.learned import Learning, MaskLogits, learn_mask
from skill_grafting.localizers.registry import Budget


def union(masks: Sequence[GraftMask]) -> GraftMask:
    """The union of masks.

    All masks of one joint model give an entry the same value, so there is nothing to be settled between
    them.  Raises ValueError if there are none, or if they are of different regions.
    """
    if not masks or any(mask.region != masks[0].region for mask in masks):
        raise ValueError("a union takes one mask or more, all of the same region")
    together = torch.cat([mask.region_indices() for mask in masks])
    return GraftMask.from_region_indices(masks[0].region, torch.unique(together))


def purify(start: GraftMask, evidences: Sequence[LocalizerInput], settings: Learning) -> GraftMask:
    """The mask of start.selected parameters that `settings.steps` steps from `start` lead to.

    evidences: one for each task, all about the same live weights and the same two models.  Overwrites the
    weights.  Raises FloatingPointError if the loss is not a number.
    """
    first = evidences[0]
    logits = MaskLogits.around(start, first.pretrained, first.finetuned, settings.offset)
    gradient = summed_gradient(evidences, settings.batch_size)
    return learn_mask(first.weights, logits, Budget(start.selected), settings, gradient).mask


def summed_gradient(evidences: Sequence[LocalizerInput], batch_size: int) -> Callable[..., Tensor]:
    """A function that gives the sum of the tasks' losses on their next batches and leaves its gradient in the weights."""

    streams = [evidence.batch_gradients(batch_size) for evidence in evidences]

    def gradient(passed_over: bool = False) -> Tensor:
        if passed_over:
            return sum(loss_gradient(True) for loss_gradient in streams)
        total, sums = 0, dict[str, Tensor]()
        for evidence, loss_gradient in zip(evidences, streams, strict=True):
            total += loss_gradient()
            for name, weight in evidence.weights.items():
                sums[name] = weight.grad if name not in sums else sums[name].add_(weight.grad)
                weight.grad = None  # the next task's pass makes a new one instead of adding to this
        for name, weight in evidences[0].weights.items():
            weight.grad = sums[name]
        return total

    return gradient
