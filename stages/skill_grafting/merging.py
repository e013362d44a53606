"""Several fine-tuned models or grafts of one pretrained model made into one.

Stitching (He et al., 2024) joins grafts into one: the mask is the union, and where several grafts select a parameter a rule decides.

Task arithmetic (Ilharco et al., 2023: Editing models with task arithmetic) adds what fine-tuning added to the weights, summed
over tasks and scaled, back to the pretrained model.  Vectors and their sums are float64, so that they lose nothing of the float32
weights; a merged model has the type of the pretrained one.  Which names are merged is the caller's choice: those of `pretrained`.
A new head has no pretrained values: leave it out and keep it trained.

    average, arithmetic   the sum of the task vectors, a share 1 / tasks of it or as much as alpha says
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

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import isfinite
from numbers import Real
from operator import or_

import torch
from torch import Tensor, nn

from .errors import MaskError, ParamsError, did_you_mean
from .grafting.apply import transplant, values_at
from .grafting.mask import GraftMask
from .grafting.mask_file import StoredMask
from .grafting.modules import fitting
from .grafting.region import Region, Tensors, named_weights
from .grafting.select import top_k
from .localizers.movement import movement
from .runtime import seeded_torch

Models = Mapping[str, Tensors]
AVERAGE, ARITHMETIC, TIES, DARE, CONSENSUS = VECTORS = ("average", "arithmetic", "ties", "dare", "consensus")
# least number of tasks that have to select a parameter
LEAST = 2


def merge(
    base: nn.Module,
    tasks: Mapping[str, tuple[nn.Module, GraftMask]],
    how: str = "mean",
    *,
    alpha: float = 1.0,
    share: float | None = None,
    strictness: float = 0.4,
    seed: int = 0,
) -> nn.Module:
    """A new module of several: task -> (its fine-tuned model, its mask); GraftMask.full merges it whole.

    mean, sum, sequence, largest: stitched grafts, where masks meet by this rule.  average, arithmetic, ties, dare, consensus:
    base + alpha * what is made of the tasks' vectors within their masks.  `share` is what ties and dare (which need peft)
    keep of each vector, 0.2 and 0.1, `strictness` the lambda of consensus.  Heads and buffers stay the base's: each task has its own.
    """
    if how not in (ways := (*RULES, *VECTORS)):
        raise ParamsError(f"how: unknown way {how!r}{did_you_mean(how, ways)}; known: {', '.join(ways)}")
    for name, value in {"alpha": alpha, "share": 1.0 if share is None else share, "strictness": strictness}.items():
        if not isinstance(value, Real) or not isfinite(value):
            raise ParamsError(f"{name}: {value!r} should be a finite number")
    if share is not None and not 0 < share <= 1:
        raise ParamsError(f"share: {share!r} should be above 0 and at most 1")
    pretrained, grafts = _grafts(base, tasks)
    if how in RULES:
        mask, values = stitch([*grafts.values()], pretrained, how)
        merged = transplant(pretrained, values, mask)
    else:
        models = {task: transplant(pretrained, one.values, one.mask) for task, one in grafts.items()}
        vector = merged_vector(how, pretrained, models, share, strictness, seed)
        merged = shifted(pretrained, vector, 1 / len(models) if how == AVERAGE else alpha)
    model = copy.deepcopy(base)
    for name, values in merged.items():
        named_weights(model)[name].data.copy_(values)
    return model


def _grafts(
    base: nn.Module, tasks: Mapping[str, tuple[nn.Module, GraftMask]]
) -> tuple[dict[str, Tensor], dict[str, StoredMask]]:
    """The base's values of the one region that all masks are of, and task -> its graft, on the CPU."""
    if not tasks:
        raise ParamsError("tasks: there are none to merge")
    region, *others = [mask.region for _, mask in tasks.values()]
    if any(other != region for other in others):
        raise MaskError("the masks are of several regions: localize all tasks with the same parameters=")
    for tuned, mask in tasks.values():
        fitting(base, tuned, mask)

    def values_of(model: nn.Module) -> dict[str, Tensor]:
        weights = named_weights(model)
        return {name: weights[name].detach().cpu() for name in region.shapes}

    grafts = {
        task: StoredMask(mask, values_at(values_of(tuned), mask), {}, {}) for task, (tuned, mask) in tasks.items()
    }
    return values_of(base), grafts


# --- Stitching --------------------------------------------------------------------------------------------------


def stitch(grafts: Sequence[StoredMask], pretrained: Tensors, rule: str) -> tuple[GraftMask, dict[str, Tensor]]:
    """The union of masks of one region, and the values at it; of the grafts only masks and values are looked at.

    Where a single graft selects a parameter, its value is copied, bit for bit.  Where several do, they collide, and a rule decides:

    * mean: the mean of their values, as in Localize-and-Stitch;
    * sum: the pretrained value and the sum of their movements, as task arithmetic has it;
    * sequence: the value of the last graft that selects it, as if grafted one after another;
    * largest: the value that moved furthest, of equally far ones the first graft's.

    Mean and sum give the same bits for every order of the grafts.  Raises MaskError for values that are more than their type holds.
    """
    union, values = reduce(or_, (graft.mask for graft in grafts)), {}
    for name, indices in union.indices.items():
        there = [graft for graft in grafts if name in graft.mask.indices]
        values[name] = _joined(there, name, indices, pretrained[name], rule)
    return union, values


def _joined(grafts: Sequence[StoredMask], name: str, indices: Tensor, pretrained: Tensor, rule: str) -> Tensor:
    """The values of one tensor at the indices of the union."""
    kind = reduce(torch.promote_types, (graft.values[name].dtype for graft in grafts))
    start = pretrained.detach().reshape(-1)[indices]
    values = start.to(torch.promote_types(kind, start.dtype)).repeat(len(grafts), 1)
    selected = torch.zeros(values.shape, dtype=torch.bool)
    for row, graft in enumerate(grafts):
        places = torch.searchsorted(indices, graft.mask.indices[name])
        values[row, places], selected[row, places] = graft.values[name].to(values), True
    chosen = _of_row(values, selected.int().argmax(0))
    colliding = selected.sum(0) > 1
    chosen[colliding] = RULES[rule](values[:, colliding], selected[:, colliding], start[colliding]).to(chosen)
    chosen = chosen.to(kind)
    if not bool(chosen.isfinite().all()):
        raise MaskError(f"{name}: the {rule} of these grafts is more than {kind} holds; take another rule")
    return chosen


def _mean(values: Tensor, selected: Tensor, _pretrained: Tensor) -> Tensor:
    return _total(values.double() * selected) / selected.sum(0)


def _sum(values: Tensor, _selected: Tensor, pretrained: Tensor) -> Tensor:
    # a graft that doesn't select a parameter has the pretrained value there, so it adds nothing
    return pretrained.double() + _total(values.double() - pretrained.double())


def _sequence(values: Tensor, selected: Tensor, _pretrained: Tensor) -> Tensor:
    numbers = torch.arange(1, len(values) + 1).reshape(-1, 1)
    return _of_row(values, (selected * numbers).argmax(0))


def _largest(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    moved = (values.double() - pretrained.double()).abs()
    return _of_row(values, moved.masked_fill(~selected, -1).argmax(0))  # argmax gives the first of equals


# (values, selected, pretrained) -> the value of each parameter; rows are grafts, columns parameters of the union
RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "sum": _sum,
    "sequence": _sequence,
    "largest": _largest,
}


def _total(numbers: Tensor) -> Tensor:
    """Sums of the columns; sorted first, so that the order of the rows can't show."""
    return numbers.sort(0).values.sum(0)


def _of_row(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(0, rows.reshape(1, -1)).reshape(-1)


# --- Task arithmetic -------------------------------------------------------------------------------------------


def task_vector(pretrained: Tensors, finetuned: Tensors) -> dict[str, Tensor]:
    """finetuned - pretrained for every name of `pretrained`, float64, same shapes."""
    return {name: finetuned[name].detach().double() - values.detach().double() for name, values in pretrained.items()}


def add(vectors: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The sum of the vectors of tasks, float64: task -> vector, at least one, all of the same names.

    Summed in the order of the tasks' names, so every order of `vectors` gives the same bits.
    """
    first, *others = sorted(vectors)
    total = {name: values.double().clone() for name, values in vectors[first].items()}
    for task in others:
        for name, values in vectors[task].items():
            total[name] += values
    return total


def shifted(pretrained: Tensors, vector: Tensors, alpha: float = 1.0) -> dict[str, Tensor]:
    """pretrained + alpha * vector: new tensors of the type of `pretrained`.

    Alpha 0 gives the pretrained values bit for bit.  Alpha 1 with the vector of one task gives the
    fine-tuned ones bit for bit, but for float32 values that became 2^28 times smaller in fine-tuning.
    """
    if alpha == 0:
        return {name: values.detach().clone() for name, values in pretrained.items()}
    return {
        name: (values.detach().double() + alpha * vector[name]).to(values.dtype) for name, values in pretrained.items()
    }


def alpha_grid(points: int) -> list[float]:
    """So many evenly spaced alphas from 0 to 1, both included; 21 points are 0, 0.05, ..., 1."""
    return [round(point / (points - 1), 10) for point in range(points)]


def choose_alpha(scores: Mapping[float, float]) -> float:
    """The alpha with the highest score, of equal ones the smallest; scores: alpha -> score, in any order."""
    return max(sorted(scores), key=scores.__getitem__)  # max keeps the first of equals


def normalised(score: float, single: float) -> float | None:
    """The score of a merged model on a task / that of the task's own model; None where that one scores 0."""
    return score / single if single else None


def mean_normalised(scores: Mapping[str, float], singles: Mapping[str, float]) -> float:
    """The mean over tasks of `normalised`, tasks whose own model scores 0 left out; 0 if that leaves none."""
    shares = [normalised(score, singles[task]) for task, score in sorted(scores.items())]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else 0.0


def combined(
    pretrained: Tensors, vectors: Mapping[str, Tensors], coefficients: Mapping[str, float]
) -> dict[str, Tensor]:
    """pretrained + sum of coefficient * vector over the named vectors: new tensors of the type of `pretrained`.

    A coefficient of 0 is as good as none, so that points on an axis are those of a single vector, bit for bit.
    """
    moved = {name: alpha for name, alpha in coefficients.items() if alpha != 0}
    if not moved:
        return shifted(pretrained, {}, 0)
    if len(moved) == 1:
        [(name, alpha)] = moved.items()
        return shifted(pretrained, vectors[name], alpha)
    scaled = {name: {key: alpha * values for key, values in vectors[name].items()} for name, alpha in moved.items()}
    return shifted(pretrained, add(scaled))


# --- The vectors of several tasks as one --------------------------------------------------------------------------


def merged_vector(
    how: str, pretrained: Tensors, models: Models, share: float | None = None, strictness: float = 0.4, seed: int = 0
) -> dict[str, Tensor]:
    """The vector of VECTORS that is added to the pretrained model, float64; `models`: task -> tensors.

    share: what ties and dare keep of each vector, None for 0.2 and 0.1; strictness: the lambda of consensus; seed: of the draws of dare.
    """
    if how not in VECTORS:
        raise ValueError(f"unknown way {how!r}; known: {', '.join(VECTORS)}")
    if how == TIES:
        return ties_merge(pretrained, models, 0.2 if share is None else share)
    if how == DARE:
        return dare_merge(pretrained, models, 0.1 if share is None else share, seed)
    total = summed(pretrained, models)
    if how != CONSENSUS:
        return total
    masks = [tall_mask(task_vector(pretrained, model), total, strictness) for model in models.values()]
    return within(total, agreed(masks))


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
