"""Consensus of tasks: the sum of the task vectors where it serves more than one of them (Wang et al., 2024).

With tau_t the vector of task t and tau their sum, the mask of t (a TALL mask) is where its own vector is larger
than lambda times what the others do there:  |tau_t| > lambda * |tau - tau_t|.  A larger lambda selects less.  What
fewer than two tasks select, one task's own parameters and those of none, is left out of the sum.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..graft.region import Tensors

# tasks that have to select a parameter
LEAST = 2


def tall_mask(vector: Tensors, total: Tensors, strictness: float) -> dict[str, Tensor]:
    """Where a task's vector is larger than `strictness` (lambda) times that of all others together; bool, same shapes."""
    return {name: own.abs() > strictness * (total[name] - own).abs() for name, own in vector.items()}


def within(vector: Tensors, mask: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector with 0 wherever the mask is not set."""
    return {name: values * mask[name] for name, values in vector.items()}


def agreed(masks: Iterable[Mapping[str, Tensor]], least: int = LEAST) -> dict[str, Tensor]:
    """Where so many masks are set, or more; bool."""
    masks = [*masks]
    return {name: torch.stack([mask[name] for mask in masks]).sum(0) >= least for name in masks[0]}
