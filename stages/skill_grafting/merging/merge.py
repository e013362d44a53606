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

Sign election and merging are peft's.  Its trimming isn't used: it takes torch.topk, which
says nothing about ties, works tensor by tensor, and may differ between machines; ours takes exactly the
same number over the whole region, as the authors of TIES do, ties by index.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..grafting.apply import AS_BITS
from ..grafting.differences import difference, is_finite, is_plain, is_same, is_whole, widest
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Region, Tensors, named_weights, outline, unwrapped
from ..grafting.select import Scratch
from ..localizers.movement import distance
from ..modules.pairs import Pair
from ..modules.targets import Model, copied
from ..support.errors import MaskError, ParamsError, did_you_mean, optional
from ..support.seeds import derive_seed
from .inputs import Piece, TaskValues, of_patch, one_region, pieces_of, within_mask

LOGGER = logging.getLogger("skill_grafting")
Models = Mapping[str, Tensors]
AVERAGE, ARITHMETIC, TIES, DARE, CONSENSUS = VECTORS = ("average", "arithmetic", "ties", "dare", "consensus")
# least number of tasks that have to select a parameter
LEAST = 2


def merge(
    base: Model | str | Path,
    tasks: Mapping[str, Any],
    how: str = "mean",
    *,
    alpha: float = 1.0,
    share: float | None = None,
    strictness: float = 0.4,
    seed: int = 0,
    to: str | Path | None = None,
) -> Model | Path:
    """Merge several tasks into a new module, or, of a base's folder or hub id, into the new folder `to`, which is given back.

    tasks: task -> a patch, or (its fine-tuned model or the pair of its checkpoint, its mask); GraftMask.full merges a model whole, and
    where the base is a folder, so does the folder or hub id of a fine-tuned checkpoint.
    how: mean, sum, sequence and largest stitch the grafts, and this rule decides where masks overlap.  average, arithmetic, ties, dare
    and consensus give base + alpha * what they make of the tasks' vectors within their masks.
    share: what ties (which needs peft) and dare keep of each vector, 0.2 and 0.1 by default; strictness: the lambda of consensus.

    Heads and buffers stay those of the base, because each task has its own.  Outside all masks, and where nothing moved, the base's
    bits stay.  Beside the new module it takes next to no memory: files are read, and written, a piece at a time.
    """
    _require_settings(how, alpha, share, strictness)
    make = partial(_merged_pieces, how, alpha=alpha, share=share, strictness=strictness, seed=seed)
    _require_tasks(tasks)
    if isinstance(base, str | Path):
        from .folders import merge_folders  # imports transformers

        return merge_folders(base, tasks, to, make)
    if to is not None:
        raise ParamsError("to: is for a base that is a folder; of a module save what merge gives")
    weights = {name: weight.detach() for name, weight in named_weights(base).items()}
    sides = {task: _side(base, weights, task, entry) for task, entry in tasks.items()}
    pretrained = {name: weights[name] for name in one_region(sides)}
    model = copied(base)
    live = named_weights(model)
    for piece, made in make(pretrained, sides):
        piece.put(live[piece.name], made)
    return model


def _merged_pieces(
    how: str, pretrained: Tensors, sides: Mapping[str, TaskValues], alpha: float, **settings: Any
) -> Iterator[tuple[Piece, Tensor]]:
    """Each piece of the base that a task has something of, tensor by tensor, and the merged values for its places."""
    if how in VECTORS:
        vector = _vector(how, pretrained, sides, **settings)
        values = partial(_moved_along, vector, alpha / len(sides) if how == AVERAGE else alpha)
    else:
        values = partial(_unmoved if len(sides) > 1 else _stitched, how)
    scratch = Scratch()
    for name in pretrained:
        for piece in pieces_of(name, pretrained, sides, scratch):
            made = values(piece)
            _require_finite(how, piece, made)
            yield piece, made


def _require_settings(how: str, alpha: float, share: float | None, strictness: float) -> None:
    """Raise ParamsError unless these are settings of `merge`."""
    if how not in (ways := (*RULES, *VECTORS)):
        raise ParamsError(f"how: unknown way {how!r}{did_you_mean(how, ways)}; known: {', '.join(ways)}")
    for name, value in {"alpha": alpha, "share": 1.0 if share is None else share, "strictness": strictness}.items():
        if not isinstance(value, Real) or not isfinite(value):
            raise ParamsError(f"{name}: {value!r} should be a finite number")
    if strictness < 0:
        raise ParamsError(f"strictness: {strictness!r} should be 0 or more")
    if share is not None and not 0 < share <= 1:
        raise ParamsError(f"share: {share!r} should be above 0 and at most 1")


def _moved_along(vector: "Vector", scale: float, piece: Piece) -> Tensor:
    moved = vector(piece)
    along = _shifted(piece.wide, moved, scale).to(piece.before.dtype)
    still = torch.from_numpy(moved.numpy() == 0)  # numpy compares eight times as fast
    return torch.where(still, piece.before, along) if still.numpy().any() else along


def _unmoved(rule: str, piece: Piece) -> Tensor:
    """Stitched values, and the base's own bits where they are equal: sums lose the sign of a zero."""
    values = _stitched(rule, piece)
    return torch.where(values == piece.before, piece.before, values)


def _require_tasks(tasks: Mapping[str, Any]) -> None:
    """Raise ParamsError unless these are tasks by name."""
    if not isinstance(tasks, Mapping) or not all(isinstance(task, str) for task in tasks):
        what = "keys that are no text" if isinstance(tasks, Mapping) else f"a {type(tasks).__name__}"
        raise ParamsError(f'tasks: should be {{"name": patch, "other": (tuned, mask)}}, not {what}')
    if not tasks:
        raise ParamsError("tasks: there are none to merge")


def _side(base: nn.Module, weights: Tensors, task: str, entry: object) -> TaskValues:
    if not (isinstance(entry, tuple | list) and len(entry) == 2):
        side = of_patch(weights, task, entry)
        if callable(require := getattr(entry, "require", None)):
            require(base)  # the one that the patch was made from
        return side
    tuned, mask = entry
    values = getattr(tuned, "after", None)
    if isinstance(tuned, nn.Module) or not isinstance(values, Mapping):
        Pair.for_mask(base, tuned, mask)
        values = named_weights(unwrapped(tuned))
    return within_mask(weights, values, mask)


def _require_finite(how: str, piece: Piece, values: Tensor) -> None:
    """Raise MaskError for values that are infinite or no numbers, and aren't the base's: a task's own, or what came of them."""
    if is_plain(values):
        return
    for task in piece.given:
        after = piece.after(task)
        if not bool((is_finite(after) | is_same(piece.before, after)).all()):
            raise MaskError(f"tasks.{task}: its values of {piece.name} are infinite or no numbers")
    if not bool((is_finite(values) | is_same(piece.before, values)).all()):
        raise MaskError(f"{piece.name}: the {how} of these grafts is more than {values.dtype} holds; take another rule")


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
    sides = {str(place): TaskValues(graft.values, graft.mask, packed=True) for place, graft in enumerate(grafts)}
    places, values = {}, {}
    for name in pretrained:
        found = [*pieces_of(name, pretrained, sides)]
        if found:
            made = [_stitched(rule, piece) for piece in found]
            for piece, own in zip(found, made, strict=True):
                _require_finite(rule, piece, own)
            places[name], values[name] = torch.cat([piece.places for piece in found]), torch.cat(made)
    return GraftMask(grafts[0].mask.region, places), values


def _stitched(rule: str, piece: Piece) -> Tensor:
    """The values of a piece, those of the first of the grafts where none collide."""
    start, given = piece.before, [values for _, values in piece.given.values()]
    kind = reduce(_joint, (values.dtype for values in given))
    odd = torch.float32 if kind.itemsize == 1 and kind.is_floating_point else torch.int64 if kind in AS_BITS else None
    if odd:  # torch computes nothing in these
        start, given = start.to(odd), [values.to(odd) for values in given]
    wide = odd or _joint(kind, start.dtype)
    if len(given) > 1 and all(where is None for where, _ in piece.given.values()):
        whole = torch.stack([own.to(wide) for own in given]), torch.ones(len(given), 1, dtype=torch.bool)
        return RULES[rule](*whole, start).to(wide).to(kind)
    values = start.to(wide).repeat(len(given), 1)
    selected = torch.zeros(values.shape, dtype=torch.bool)
    for row, ((where, _), own) in enumerate(zip(piece.given.values(), given, strict=True)):
        places = slice(None) if where is None else where
        values[row, places], selected[row, places] = own.to(values.dtype), True
    chosen, *others = values.flip(0)
    for own, there in zip(others, selected.flip(0)[1:], strict=True):
        chosen = torch.where(there, own, chosen)  # in the end the first one's of those that select it
    colliding = (reduce(torch.add, selected.to(torch.int16)) > 1).nonzero().reshape(-1)
    if len(colliding):
        chosen[colliding] = RULES[rule](values[:, colliding], selected[:, colliding], start[colliding]).to(chosen.dtype)
    return chosen.to(kind)


def _joint(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    return first if first == second else torch.promote_types(first, second)


def _mean(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    if is_whole(values):
        return _shifted(pretrained, _total(difference(pretrained, values, wide=True)) / selected.sum(0))
    return _total(values if selected.shape[1] == 1 else values * selected) / selected.sum(0)


def _sum(values: Tensor, _selected: Tensor, pretrained: Tensor) -> Tensor:
    # a graft that doesn't select a parameter has the pretrained value there, so it adds nothing
    if is_whole(values) or values.is_complex():
        return _shifted(pretrained, _total(difference(pretrained, values, wide=True)), wide=True)
    first, *others = (
        difference(pretrained, row, wide=True) for row in _sorted(values)
    )  # in the order of the differences
    return _shifted(pretrained, reduce(torch.Tensor.add_, others, first), wide=True)


def _sequence(values: Tensor, selected: Tensor, _pretrained: Tensor) -> Tensor:
    rows = zip(values[1:], selected[1:], strict=True)
    return reduce(lambda chosen, row: torch.where(row[1], row[0], chosen), rows, values[0])


def _largest(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    moved = difference(pretrained, values, wide=True).abs()
    if selected.shape[1] > 1:
        moved.masked_fill_(~selected, -1)
    if not is_plain(moved):  # which is refused later
        return _of_row(values, moved.argmax(0))
    chosen, most = values[0], moved[0]
    for own, distance_of_it in zip(values[1:], moved[1:], strict=True):
        chosen = torch.where(distance_of_it > most, own, chosen)  # of equals the first
        most = torch.maximum(most, distance_of_it)
    return chosen


# (values, selected, pretrained) -> the value of each parameter; rows are grafts, columns parameters of the union; `selected` has one
# column if it is the same for all
RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "sum": _sum,
    "sequence": _sequence,
    "largest": _largest,
}


def _total(numbers: Tensor) -> Tensor:
    """Sums of the columns, row by row; sorted first, so that the order of the rows can't show.

    A column has a few numbers, which are sorted by comparing neighbours: all columns at once, where torch.sort takes one after another.
    """
    if numbers.is_complex():
        return torch.view_as_complex(_total(torch.view_as_real(numbers)))
    first, *others = _sorted(numbers)
    return reduce(torch.Tensor.add_, others, widest(first) + 0)


def _sorted(numbers: Tensor) -> list[Tensor]:
    """Rows of which each column rises, in types of four bytes or more."""
    rows = [*(numbers.float() if numbers.itemsize < 4 else numbers)]
    for stop in range(len(rows) - 1, 0, -1):
        for place in range(stop):
            low, high = rows[place : place + 2]
            rows[place : place + 2] = torch.minimum(low, high), torch.maximum(low, high)
    return rows


def _of_row(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(0, rows.reshape(1, -1)).reshape(-1)


# --- Task arithmetic -------------------------------------------------------------------------------------------


def task_vector(pretrained: Tensors, finetuned: Tensors) -> dict[str, Tensor]:
    """finetuned - pretrained for every name of `pretrained`, same shapes, float64, or complex128 of complex numbers."""
    return {
        name: difference(values.detach(), finetuned[name].detach(), wide=True) for name, values in pretrained.items()
    }


def add(vectors: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The sum of the vectors of tasks, float64: task -> vector, at least one, all of the same names.

    Summed in the order of the tasks' names, so every order of `vectors` gives the same bits.
    """
    first, *others = sorted(vectors)
    total = {name: widest(values).clone() for name, values in vectors[first].items()}
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


def _shifted(values: Tensor, vector: Tensor, alpha: float = 1.0, wide: bool = False) -> Tensor:
    """values + alpha * vector in the type of the values, or the `wide` one in which it is summed; whole numbers are rounded at the end."""
    if is_whole(values):
        along, kind = (alpha * vector).round(), values.dtype
        made = values.long() + along.long()
        roughly = values.double() + along  # which doesn't wrap around
        if not (
            torch.equal(made.to(kind).long(), made) and bool(((made.to(kind).double() - roughly).abs() < 2.0**62).all())
        ):
            raise MaskError(f"whole numbers come to more than {kind} holds; take another rule, or a smaller alpha")
        return made.to(kind)
    made = widest(values) + (vector if alpha == 1 else alpha * vector)
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


# the vector of the way at the places of a piece, float64; it is asked for all pieces of a tensor in order, and all tensors in theirs
Vector = Callable[[Piece], Tensor]


def merged_vector(
    how: str, pretrained: Tensors, models: Models, share: float | None = None, strictness: float = 0.4, seed: int = 0
) -> dict[str, Tensor]:
    """The vector of VECTORS that is added to the pretrained model, float64; `models`: task -> tensors.

    share: what ties and dare keep of each vector, None for 0.2 and 0.1; strictness: the lambda of consensus; seed: of the draws of dare.
    """
    if how not in VECTORS:
        raise ValueError(f"unknown way {how!r}; known: {', '.join(VECTORS)}")
    sides, scratch = {task: TaskValues(model) for task, model in models.items()}, Scratch()
    vector, found = _vector(how, pretrained, sides, share, strictness, seed), {}
    for name, before in pretrained.items():
        found[name] = torch.empty(before.shape, dtype=torch.complex128 if before.is_complex() else torch.float64)
        for piece in pieces_of(name, pretrained, sides, scratch):
            piece.put(found[name], vector(piece))
    return found


def _vector(
    how: str, pretrained: Tensors, sides: Mapping[str, TaskValues], share: float | None, strictness: float, seed: int
) -> Vector:
    if how == TIES:
        return _ties(pretrained, sides, 0.2 if share is None else share)
    if how == DARE:
        return partial(_dropped, {}, 0.1 if share is None else share, seed)
    return partial(_agreeing, strictness) if how == CONSENSUS else _added


def summed(pretrained: Tensors, models: Models) -> dict[str, Tensor]:
    """The sum of the task vectors of `models` (task -> tensors), float64."""
    return merged_vector(ARITHMETIC, pretrained, models)


def _added(piece: Piece) -> Tensor:
    """The sum of all tasks' vectors, in the order of their names, as `add` sums them."""
    first, *others = sorted(piece.given)
    return reduce(lambda total, task: total.add_(piece.moved(task)), others, piece.moved(first, "total"))


def _agreeing(strictness: float, piece: Piece) -> Tensor:
    """The sum where it serves LEAST tasks or more."""
    total = _added(piece)
    return total * (sum(_is_tall(piece.moved(task), total, strictness).int() for task in piece.given) >= LEAST)


def _dropped(draws: dict[tuple[str, str], torch.Generator], share: float, seed: int, piece: Piece) -> Tensor:
    """The sum of task vectors of which a random `share` of entries stays, scaled by 1 / share.

    The draw follows from seed, task and tensor alone, so it is the same whatever other tasks there are.  `draws` are those begun.
    """

    def dropped(task: str, use: str = "difference") -> Tensor:
        if piece.start == 0:
            draws[task] = torch.Generator().manual_seed(derive_seed("dare", seed, task, piece.name))
        chance = torch.full((piece.stop - piece.start,), share, dtype=torch.float64)
        kept = torch.bernoulli(chance, generator=draws[task])
        return piece.moved(task, use).mul_(kept if piece.at is None else kept[piece.at]).div_(share)

    first, *others = sorted(piece.given)
    return reduce(lambda total, task: total.add_(dropped(task)), others, dropped(first, "total"))


def _ties(pretrained: Tensors, sides: Mapping[str, TaskValues], share: float) -> Vector:
    """Each vector trimmed to the `share` of the region that moved furthest, signs elected, and merged."""
    utils = optional("peft.utils.merge_utils")  # takes seconds to import

    outlines = {name: outline(pretrained, name) for name in pretrained}
    region = Region({name: tuple(before.shape) for name, before in outlines.items()})
    if strange := next((name for name, before in outlines.items() if before.is_complex()), None):
        raise MaskError(f"{strange}: ties elects signs, and complex numbers have none; take another way")
    k = region.budget(share)
    least = {task: _least_kept(pretrained, side, k) for task, side in sides.items()}

    def trimmed(piece: Piece, task: str) -> Tensor:
        after, (limit, left) = piece.after(task), least[task]
        moved = distance(piece.before, after)
        if not is_plain(moved):  # it would be passed over
            _require_finite(TIES, piece, after)
        kept, equal = moved > limit, moved == limit
        count = min(int(equal.sum()), left)
        least[task] = limit, left - count
        kept |= equal & (equal.cumsum(0) <= count)
        return torch.where(kept, difference(piece.before, after, wide=True), 0.0)

    def vector(piece: Piece) -> Tensor:
        stack = torch.stack([trimmed(piece, task) for task in sorted(piece.given)])
        return utils.disjoint_merge(stack, utils.calculate_majority_sign_mask(stack))

    return vector


def _least_kept(pretrained: Tensors, side: TaskValues, k: int) -> tuple[float, int]:
    """Of the k parameters that moved furthest the least movement, and how many with just that are among them."""
    if k == 0:
        return torch.inf, 0
    kinds = {outline(pretrained, name).dtype for name in pretrained}
    none = [torch.empty(0, dtype=kind) for kind in kinds]
    kind = reduce(torch.promote_types, (distance(one, one).dtype for one in none))

    def moved() -> Iterator[Tensor]:
        for name in pretrained:
            for piece in pieces_of(name, pretrained, {"": side}):
                yield distance(piece.before, piece.after("")).to(kind)

    return kth_highest(moved, k, kind)


def kth_highest(parts: Callable[[], Iterable[Tensor]], k: int, kind: torch.dtype) -> tuple[float, int]:
    """The k-th highest of numbers from 0 on, and how many that equal it are among the k highest; 0 and 0 of fewer than k numbers.

    They come in parts of a kind, float32 twice and float64 four times, and are counted by 16 of their bits at a time: bits of
    such numbers are in their order.  So what is remembered doesn't grow with them.
    """
    found, left = 0, k
    for shift in range(8 * kind.itemsize - 16, -1, -16):
        counts = np.zeros(1 << 16, dtype=np.int64)
        for part in parts():
            digits = part.numpy().view(f"i{kind.itemsize}") >> shift
            counts += np.bincount(digits[digits >> 16 == found] & 0xFFFF, minlength=1 << 16)
        higher = counts[::-1].cumsum()
        if higher[-1] < left:
            return 0.0, 0
        place = int(np.searchsorted(higher, left))
        digit = len(counts) - 1 - place
        found, left = found << 16 | digit, left - int(higher[place] - counts[digit])
    return float(np.array(found, f"i{kind.itemsize}").view(f"f{kind.itemsize}")), left


def tall_mask(vector: Tensors, total: Tensors, strictness: float) -> dict[str, Tensor]:
    """Where a task's vector is larger than `strictness` (lambda) times that of all others together; bool, same shapes."""
    return {name: _is_tall(own, total[name], strictness) for name, own in vector.items()}


def _is_tall(own: Tensor, total: Tensor, strictness: float) -> Tensor:
    return own.abs() > strictness * (total - own).abs()


def within(vector: Tensors, mask: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector with 0 wherever the mask is not set."""
    return {name: values * mask[name] for name, values in vector.items()}


def agreed(masks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Where LEAST masks are set, or more; bool."""
    return {name: torch.stack([mask[name] for mask in masks]).sum(0) >= LEAST for name in masks[0]}
