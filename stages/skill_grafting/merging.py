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

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from math import isfinite, prod
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from .errors import MaskError, ParamsError, did_you_mean
from .grafting.apply import AS_BITS, is_finite, is_same, put_at, take_at, write
from .grafting.mask import GraftMask, require_mask
from .grafting.mask_file import StoredMask
from .grafting.modules import fitting
from .grafting.region import LazyTensors, Region, Tensors, named_weights
from .grafting.select import best
from .grafting.states import copied, states_of
from .localizers.movement import distance, movement
from .runtime import seeded_torch

Models = Mapping[str, Tensors]
AVERAGE, ARITHMETIC, TIES, DARE, CONSENSUS = VECTORS = ("average", "arithmetic", "ties", "dare", "consensus")
# least number of tasks that have to select a parameter
LEAST = 2


def merge(
    base: nn.Module,
    tasks: Mapping[str, Any],
    how: str = "mean",
    *,
    alpha: float = 1.0,
    share: float | None = None,
    strictness: float = 0.4,
    seed: int = 0,
) -> nn.Module:
    """Merge several tasks into a new module.

    tasks: task -> a patch, or (its fine-tuned model, its mask); GraftMask.full merges a model whole.
    how: mean, sum, sequence and largest stitch the grafts, and this rule decides where masks overlap.  average, arithmetic, ties, dare
    and consensus give base + alpha * what they make of the tasks' vectors within their masks.
    share: what ties and dare (which need peft) keep of each vector, 0.2 and 0.1 by default; strictness: the lambda of consensus.

    Heads and buffers stay those of the base, because each task has its own.  Outside all masks, and where nothing moved, the base's
    bits stay.  Only one tensor of all tasks is in memory at a time.
    """
    if how not in (ways := (*RULES, *VECTORS)):
        raise ParamsError(f"how: unknown way {how!r}{did_you_mean(how, ways)}; known: {', '.join(ways)}")
    for name, value in {"alpha": alpha, "share": 1.0 if share is None else share, "strictness": strictness}.items():
        if not isinstance(value, Real) or not isfinite(value):
            raise ParamsError(f"{name}: {value!r} should be a finite number")
    if share is not None and not 0 < share <= 1:
        raise ParamsError(f"share: {share!r} should be above 0 and at most 1")
    grafts = _grafts(base, tasks)
    region = next(iter(grafts.values())).mask.region
    weights = named_weights(base)
    pretrained = LazyTensors(region.shapes, lambda name: weights[name].detach().cpu())
    vectors = None
    if how in VECTORS:
        models = {task: _transplanted(pretrained, graft) for task, graft in grafts.items()}
        vectors = _vectors(how, pretrained, models, share, strictness, seed)
    model = copied(base)
    for name, weight in named_weights(model).items():
        at = union([graft.mask for graft in grafts.values()], name)
        if len(at):
            start = take_at(pretrained[name], at)
            if vectors is None:
                values = _stitched([*grafts.values()], name, at, pretrained[name], how)
                if len(grafts) > 1:  # sums lose the sign of a zero
                    values = torch.where(values == start, start, values)
            else:
                vector = take_at(vectors[name], at)
                scale = 1 / len(grafts) if how == AVERAGE else alpha
                values = torch.where(vector == 0, start, _shifted(start, vector, scale))
            _require_finite(name, how, start, values)
            write([(weight, at, values)])
    return model


def _transplanted(pretrained: Tensors, graft: StoredMask) -> Tensors:
    """The tensors of a graft, each made when it is asked for."""

    def make(name: str) -> Tensor:
        made = pretrained[name].clone(memory_format=torch.contiguous_format)
        if name in graft.mask.indices:
            put_at(made, graft.mask.indices[name], graft.values[name])
        return made

    return LazyTensors(graft.mask.region.shapes, make)


def _grafts(base: nn.Module, tasks: Mapping[str, Any]) -> dict[str, StoredMask]:
    """Task -> its graft, its values on the CPU when they are asked for, in the base's type; all masks are of one region."""
    if not isinstance(tasks, Mapping) or not all(isinstance(task, str) for task in tasks):
        what = "keys that are no text" if isinstance(tasks, Mapping) else f"a {type(tasks).__name__}"
        raise ParamsError(f'tasks: should be {{"name": patch, "other": (tuned, mask)}}, not {what}')
    if not tasks:
        raise ParamsError("tasks: there are none to merge")
    grafts = {task: _graft(base, task, entry) for task, entry in tasks.items()}
    region, *others = [graft.mask.region for graft in grafts.values()]
    if any(other != region for other in others):
        raise MaskError("the masks are of several regions: localize all tasks with the same parameters=")
    return grafts


def _graft(base: nn.Module, task: str, entry: object) -> StoredMask:
    if isinstance(entry, tuple | list) and len(entry) == 2:
        mask, (_, after) = entry[1], fitting(base, *entry)
        return StoredMask(
            mask, LazyTensors(mask.indices, lambda name: take_at(after[name], mask.indices[name]).cpu()), {}, {}
        )
    mask, values = getattr(entry, "mask", None), getattr(entry, "values", None)
    if not isinstance(mask, GraftMask) or not isinstance(values, Mapping):
        whole = (
            "; (tuned, GraftMask.full(mask.region)) merges all of a mask's region"
            if isinstance(entry, nn.Module)
            else ""
        )
        raise ParamsError(f"tasks.{task}: should be a patch or (tuned, mask), not a {type(entry).__name__}{whole}")
    before, _ = states_of(base, base)
    require_mask(mask, before)
    for name, indices in mask.indices.items():
        if name not in values or values[name].shape != indices.shape:
            raise MaskError(f"tasks.{task}: has no {len(indices)} values for {name}")
        kind = before[name].dtype
        if not bool(is_same(values[name].to(kind).to(values[name].dtype), values[name]).all()):
            raise MaskError(
                f"tasks.{task}: its values of {name} are {values[name].dtype}, which the base's {kind} rounds: pass base.float()"
            )
    held = {name: values[name].detach().to("cpu", before[name].dtype) for name in mask.indices}
    return StoredMask(mask, held, {}, {})


def union(masks: Sequence[GraftMask], name: str) -> Tensor:
    """Flat indices of one tensor that any mask selects, rising."""
    found = [mask.indices[name] for mask in masks if name in mask.indices]
    if all(torch.equal(found[0], other) for other in found[1:]):
        return found[0] if found else torch.empty(0, dtype=torch.int64)
    marks = torch.zeros(prod(masks[0].region.shapes[name]), dtype=torch.bool)
    for indices in found:
        marks[indices] = True
    return marks.nonzero().reshape(-1)


def _require_finite(name: str, how: str, start: Tensor, values: Tensor) -> None:
    if not bool((is_finite(values) | is_same(start, values)).all()):
        raise MaskError(f"{name}: the {how} of these grafts is more than {values.dtype} holds; take another rule")


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
    masks = [graft.mask for graft in grafts]
    places = {name: union(masks, name) for name in pretrained if any(name in mask.indices for mask in masks)}
    values = {name: _stitched(grafts, name, at, pretrained[name], rule) for name, at in places.items()}
    for name, made in values.items():
        _require_finite(name, rule, take_at(pretrained[name], places[name]), made)
    return GraftMask(masks[0].region, places), values


def _stitched(grafts: Sequence[StoredMask], name: str, indices: Tensor, pretrained: Tensor, rule: str) -> Tensor:
    """The values of one tensor at the indices of the union."""
    grafts = [graft for graft in grafts if name in graft.mask.indices]
    given = [graft.values[name] for graft in grafts]
    kind = reduce(_joint, (values.dtype for values in given))
    start = take_at(pretrained, indices)
    odd = torch.float32 if kind.itemsize == 1 and kind.is_floating_point else torch.int64 if kind in AS_BITS else None
    if odd:  # torch computes nothing in these
        start, given = start.to(odd), [values.to(odd) for values in given]
    values = start.to(odd or _joint(kind, start.dtype)).repeat(len(grafts), 1)
    selected = torch.zeros(values.shape, dtype=torch.bool)
    for row, (graft, own) in enumerate(zip(grafts, given, strict=True)):
        places = torch.searchsorted(indices, graft.mask.indices[name])
        values[row, places], selected[row, places] = own.to(values.dtype), True
    chosen = _of_row(values, selected.int().argmax(0))
    colliding = selected.sum(0) > 1
    if bool(colliding.any()):
        chosen[colliding] = RULES[rule](values[:, colliding], selected[:, colliding], start[colliding]).to(chosen.dtype)
    return chosen.to(kind)


def _joint(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    return first if first == second else torch.promote_types(first, second)


def _mean(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    if _is_whole(values):  # exact far beyond what a float64 holds
        return _shifted(pretrained, _total(_moved(pretrained, values)) / selected.sum(0))
    return _total(_wide(values) * selected) / selected.sum(0)


def _sum(values: Tensor, _selected: Tensor, pretrained: Tensor) -> Tensor:
    # a graft that doesn't select a parameter has the pretrained value there, so it adds nothing
    return _shifted(pretrained, _total(_moved(pretrained, values)), wide=True)


def _sequence(values: Tensor, selected: Tensor, _pretrained: Tensor) -> Tensor:
    numbers = torch.arange(1, len(values) + 1).reshape(-1, 1)
    return _of_row(values, (selected * numbers).argmax(0))


def _largest(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    moved = _moved(pretrained, values).abs()
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
    if numbers.is_complex():
        return torch.view_as_complex(_total(torch.view_as_real(numbers)))
    return numbers.sort(0).values.sum(0)


def _of_row(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(0, rows.reshape(1, -1)).reshape(-1)


# --- Task arithmetic -------------------------------------------------------------------------------------------


def task_vector(pretrained: Tensors, finetuned: Tensors) -> dict[str, Tensor]:
    """finetuned - pretrained for every name of `pretrained`, same shapes, float64, or complex128 of complex numbers."""
    return {name: _moved(values.detach(), finetuned[name].detach()) for name, values in pretrained.items()}


def add(vectors: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The sum of the vectors of tasks, float64: task -> vector, at least one, all of the same names.

    Summed in the order of the tasks' names, so every order of `vectors` gives the same bits.
    """
    first, *others = sorted(vectors)
    total = {name: _wide(values).clone() for name, values in vectors[first].items()}
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
    return {name: _shifted(values.detach(), vector[name], alpha) for name, values in pretrained.items()}


def _is_whole(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex())


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """after - before in float64 or complex128, 0 where both are the same infinity or NaN; of whole numbers exactly."""
    if _is_whole(before):
        return (after.long() - before.long()).double()
    moved = _wide(after) - _wide(before)
    if not bool(torch.isfinite(moved.sum())):
        moved.masked_fill_(is_same(before, after), 0)
    return moved


def _shifted(values: Tensor, vector: Tensor, alpha: float = 1.0, wide: bool = False) -> Tensor:
    """values + alpha * vector in the type of the values, or the `wide` one in which it is summed; whole numbers are rounded at the end."""
    if _is_whole(values):
        return (values.long() + (alpha * vector).round().long()).to(values.dtype)
    made = _wide(values) + alpha * vector
    return made if wide else made.to(values.dtype)


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
    return dict(_vectors(how, pretrained, models, share, strictness, seed))


def _vectors(
    how: str, pretrained: Tensors, models: Models, share: float | None, strictness: float, seed: int
) -> Tensors:
    """The vector of VECTORS, each tensor made when it is asked for."""
    if how == TIES:
        return _ties(pretrained, models, 0.2 if share is None else share)
    if how == DARE:
        return LazyTensors(pretrained, partial(_dropped, pretrained, models, 0.1 if share is None else share, seed))

    def vectors(name: str) -> Iterator[Tensor]:  # one at a time, in the order in which `add` sums them
        return (_moved(pretrained[name].detach(), models[task][name].detach()) for task in sorted(models))

    def make(name: str) -> Tensor:
        total = _sum_of(vectors(name))
        if how == CONSENSUS:
            masks = (tall_mask({name: vector}, {name: total}, strictness) for vector in vectors(name))
            total *= sum(mask[name].to(torch.uint8 if len(models) < 256 else torch.int32) for mask in masks) >= LEAST
        return total

    return LazyTensors(pretrained, make)


def summed(pretrained: Tensors, models: Models) -> dict[str, Tensor]:
    """The sum of the task vectors of `models` (task -> tensors), float64."""
    return merged_vector(ARITHMETIC, pretrained, models)


def dare_merge(pretrained: Tensors, models: Models, share: float, seed: int) -> dict[str, Tensor]:
    """The sum of task vectors of which a random `share` of entries stays, scaled by 1 / share.

    The draw follows from seed, task and tensor alone, so it is the same whatever other tasks there are.
    """
    return merged_vector(DARE, pretrained, models, share, seed=seed)


def ties_merge(pretrained: Tensors, models: Models, share: float) -> dict[str, Tensor]:
    """TIES of the task vectors, float64: trim each to a `share` of its entries, elect signs, merge."""
    return merged_vector(TIES, pretrained, models, share)


def _dropped(pretrained: Tensors, models: Models, share: float, seed: int, name: str) -> Tensor:
    from peft.utils.merge_utils import random_pruning  # takes seconds to import

    def dropped(task: str) -> Tensor:
        vector = _moved(pretrained[name], models[task][name].detach())
        with seeded_torch("dare", seed, task, name):
            kept = random_pruning(torch.ones(vector.shape, dtype=torch.float64), share, rescale=False)
        return vector.mul_(kept).div_(share)

    return _sum_of(dropped(task) for task in sorted(models))


def _sum_of(vectors: Iterator[Tensor]) -> Tensor:
    """The sum of vectors that are made one at a time, in the first one's memory."""
    total = next(vectors)
    for vector in vectors:
        total += vector
    return total


def _ties(pretrained: Tensors, models: Models, share: float) -> Tensors:
    from peft.utils.merge_utils import calculate_majority_sign_mask, disjoint_merge

    region = Region({name: tuple(pretrained[name].shape) for name in pretrained})
    least = {task: _least_kept(region, movement(pretrained, model, region), share) for task, model in models.items()}

    def make(name: str) -> Tensor:
        before = pretrained[name]
        if before.is_complex():
            raise MaskError(f"{name}: ties elects signs, and complex numbers have none; take another way")
        places = torch.arange(before.numel()).reshape(before.shape) + region.starts[name]
        stack = []
        for task in sorted(models):
            after, (limit, last) = models[task][name].detach(), least[task]
            moved = distance(before, after)
            kept = (moved > limit) | ((moved == limit) & (places <= last))
            stack.append(torch.where(kept, _moved(before, after), 0.0))
        stack = torch.stack(stack)
        return disjoint_merge(stack, calculate_majority_sign_mask(stack))

    return LazyTensors(pretrained, make)


def _least_kept(region: Region, moved: Tensors, share: float) -> tuple[float, int]:
    """Of the `share` of parameters that moved furthest the least movement, and the last place with it that is among them."""
    values, places = best(region, moved, region.budget(share))
    least = values.min() if len(values) else torch.tensor(torch.inf)
    return float(least), int(places[values == least].max()) if len(values) else -1


def tall_mask(vector: Tensors, total: Tensors, strictness: float) -> dict[str, Tensor]:
    """Where a task's vector is larger than `strictness` (lambda) times that of all others together; bool, same shapes."""
    return {name: own.abs() > strictness * (total[name] - own).abs() for name, own in vector.items()}


def within(vector: Tensors, mask: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector with 0 wherever the mask is not set."""
    return {name: values * mask[name] for name, values in vector.items()}


def agreed(masks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Where LEAST masks are set, or more; bool."""
    return {name: torch.stack([mask[name] for mask in masks]).sum(0) >= LEAST for name in masks[0]}
