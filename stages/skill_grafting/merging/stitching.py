"""Stitching (He et al., 2024): grafts joined into one; the mask is the union, and where several select a parameter a rule decides."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from ..grafting.apply import AS_BITS
from ..grafting.differences import difference, is_plain, is_whole, widest
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Tensors
from .arithmetic import moved_by
from .inputs import Piece, TaskValues, pieces_of, require_finite


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
            made = [stitched(rule, piece) for piece in found]
            for piece, own in zip(found, made, strict=True):
                require_finite(rule, piece, own)
            places[name], values[name] = torch.cat([piece.places for piece in found]), torch.cat(made)
    return GraftMask(grafts[0].mask.region, places), values


def stitched(rule: str, piece: Piece) -> Tensor:
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
        return moved_by(pretrained, _total(difference(pretrained, values, wide=True)) / selected.sum(0))
    return _total(values * selected if _some(values, selected) else values) / selected.sum(0)


def _sum(values: Tensor, _selected: Tensor, pretrained: Tensor) -> Tensor:
    # a graft that doesn't select a parameter has the pretrained value there, so it adds nothing
    if is_whole(values) or values.is_complex():
        return moved_by(pretrained, _total(difference(pretrained, values, wide=True)), wide=True)
    first, *others = (
        difference(pretrained, row, wide=True) for row in _sorted(values)
    )  # in the order of the differences
    return moved_by(pretrained, reduce(torch.Tensor.add_, others, first), wide=True)


def _sequence(values: Tensor, selected: Tensor, _pretrained: Tensor) -> Tensor:
    rows = zip(values[1:], selected[1:], strict=True)
    return reduce(lambda chosen, row: torch.where(row[1], row[0], chosen), rows, values[0])


def _largest(values: Tensor, selected: Tensor, pretrained: Tensor) -> Tensor:
    moved = difference(pretrained, values, wide=True).abs()
    if _some(values, selected):
        moved.masked_fill_(~selected, -1)
    if not is_plain(moved):  # which is refused later
        return _of_row(values, moved.argmax(0))
    chosen, most = values[0], moved[0]
    for own, distance_of_it in zip(values[1:], moved[1:], strict=True):
        chosen = torch.where(distance_of_it > most, own, chosen)  # of equals the first
        most = torch.maximum(most, distance_of_it)
    return chosen


def _some(values: Tensor, selected: Tensor) -> bool:
    """True if each column has its own rows that select it, and not all columns all rows."""
    return selected.shape == values.shape


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
