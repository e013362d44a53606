"""Vectors that methods add to the pretrained model, each made of the models of several tasks.

    arithmetic  the sum of the task vectors (Ilharco et al., 2023); average and grafted_arithmetic too
    ties        each vector trimmed to the parameters that moved furthest; where signs disagree, the
                sign with more movement wins and the mean of those who have it stays (Yadav et al., 2023)
    dare        of each vector a random share stays, scaled up by 1 / share; then the sum (Yu et al., 2024)
    consensus   the sum where it serves more than one of the tasks (Wang et al., 2024)

Consensus: with tau_t the vector of task t and tau their sum, the mask of t (a TALL mask) is where its own vector is larger
than lambda times what the others do there:  |tau_t| > lambda * |tau - tau_t|.  A larger lambda selects less.  What
fewer than two tasks select, one task's own parameters and those of none, is left out of the sum.

Sign election, merging and dropping are peft's.  Its trimming isn't used: it takes torch.topk, which
says nothing about ties, works tensor by tensor, and may differ between machines; ours takes exactly the
same number over the whole region, as the authors of TIES do, ties by index.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..grafting.mask import GraftMask
from ..grafting.region import Region, Tensors
from ..grafting.select import top_k
from ..localizers.movement import movement
from ..runtime import seeded_torch
from .arithmetic import add, task_vector

Models = Mapping[str, Tensors]
# least number of tasks that have to select a parameter
LEAST = 2


def summed(pretrained: Tensors, models: Models) -> dict[str, Tensor]:
    """The sum of the task vectors of `models` (task -> tensors), float64."""
    return _by_tensor(pretrained, models, lambda _task, _name, vector: vector)


def dare_merge(pretrained: Tensors, models: Models, share: float, seed: int) -> dict[str, Tensor]:
    """The sum of task vectors of which a random `share` of entries stays, scaled by 1 / share.

    The draw follows from seed, task and tensor alone, so it is the same whatever other tasks there are.
    """

    from peft.utils.merge_utils import random_pruning  # takes seconds to import

    def drop(task: str, name: str, vector: Tensor) -> Tensor:
        with seeded_torch("dare", seed, task, name):
            return random_pruning(vector, share, rescale=True)

    return _by_tensor(pretrained, models, drop)


def ties_merge(pretrained: Tensors, models: Models, share: float) -> dict[str, Tensor]:
    """TIES of the task vectors, float64: trim each to a `share` of its entries, elect signs, merge."""
    from peft.utils.merge_utils import calculate_majority_sign_mask, disjoint_merge

    region = Region({name: tuple(values.shape) for name, values in pretrained.items()})
    budget = region.budget(share)
    kept = {task: top_k(region, movement(pretrained, model, region), budget) for task, model in models.items()}
    merged = {}
    for name, values in pretrained.items():
        stack = torch.stack([_trimmed(values, models[task][name], kept[task], name) for task in sorted(models)])
        merged[name] = disjoint_merge(stack, calculate_majority_sign_mask(stack))
    return merged


def _trimmed(pretrained: Tensor, finetuned: Tensor, kept: GraftMask, name: str) -> Tensor:
    vector = torch.zeros(pretrained.numel(), dtype=torch.float64)
    if name in kept.indices:
        places = kept.indices[name]
        vector[places] = finetuned.reshape(-1)[places].double() - pretrained.reshape(-1)[places].double()
    return vector.reshape(pretrained.shape)


def _by_tensor(pretrained: Tensors, models: Models, change: Callable[[str, str, Tensor], Tensor]) -> dict[str, Tensor]:
    """The sum of changed task vectors, one tensor at a time: vectors of whole models would take eight bytes a parameter."""
    total = {}
    for name, values in pretrained.items():
        vectors = {
            task: {name: change(task, name, task_vector({name: values}, model)[name])} for task, model in models.items()
        }
        total |= add(vectors)
    return total


def tall_mask(vector: Tensors, total: Tensors, strictness: float) -> dict[str, Tensor]:
    """Where a task's vector is larger than `strictness` (lambda) times that of all others together; bool, same shapes."""
    return {name: own.abs() > strictness * (total[name] - own).abs() for name, own in vector.items()}


def within(vector: Tensors, mask: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector with 0 wherever the mask is not set."""
    return {name: values * mask[name] for name, values in vector.items()}


def agreed(masks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Where LEAST masks are set, or more; bool."""
    return {name: torch.stack([mask[name] for mask in masks]).sum(0) >= LEAST for name in masks[0]}
