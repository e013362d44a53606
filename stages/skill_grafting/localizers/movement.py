"""Movement: rank parameters by how far fine-tuning moved them (paper, section 2.3)."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..grafting.apply import values_at
from ..grafting.differences import difference, is_finite, subtracted
from ..grafting.mask import GraftMask
from ..grafting.region import Region, Tensors
from ..grafting.select import Elementwise, NoNumberError, Scratch, best, ordered, pieces_of
from .localizer import Budget, Keep, Localizer, LocalizerInput


def movement(pretrained: Tensors, finetuned: Tensors, region: Region) -> Tensors:
    """|theta_ft - theta_pre| of every parameter of the region, same shapes; a tensor or a piece at a time, when it is asked for."""
    return Elementwise(region.shapes, distance, pretrained, finetuned)


def distance(before: Tensor, after: Tensor) -> Tensor:
    """|after - before|, a tensor of its own."""
    return _size(difference(before, after))


def squared_movement(pretrained: Tensors, finetuned: Tensors, names: Iterable[str]) -> dict[str, float]:
    """The squared distance that each of these parameters moved; not finite where one moved further than a number can say."""
    scratch, found = Scratch(), {}
    for name in names:
        parts = (squared_distance(*part, scratch) for part in pieces_of(name, pretrained, finetuned))
        # a number of the processor's memory isn't kept as a tensor, between which large pieces of memory would lie unused
        found[name] = sum(part if part.device.type != "cpu" else float(part) for part in parts)
    return {name: float(square) for name, square in found.items()}


def squared_distance(before: Tensor, after: Tensor, scratch: Scratch | None = None) -> Tensor:
    """The sum of the squared distances between values, in float64."""
    scratch = scratch or Scratch()
    moved = difference(before.detach(), after.detach(), scratch=scratch).reshape(-1)
    moved = torch.view_as_real(moved).reshape(-1) if moved.is_complex() else moved
    wide = scratch("wide", moved, torch.float64).copy_(moved)
    return wide.dot(wide)


def movement_order(pretrained: Tensors, finetuned: Tensors, region: Region, k: int, keep: Keep = None) -> Tensor:
    """Region indices (int64, shape (k,)) of the k parameters that moved most, furthest first."""
    return ordered(*_most_moved(pretrained, finetuned, region, k, keep))


def movement_mask(pretrained: Tensors, finetuned: Tensors, region: Region, k: int, keep: Keep = None) -> GraftMask:
    """The mask of the k parameters that moved most."""
    return GraftMask.from_region_indices(region, _most_moved(pretrained, finetuned, region, k, keep)[1])


def _most_moved(
    pretrained: Tensors, finetuned: Tensors, region: Region, k: int, keep: Keep = None
) -> tuple[Tensor, Tensor]:
    """The k largest movements and their region indices, as `best` gives them; raises NoNumberError if one of all is infinite or NaN.

    Values that are the same infinity or NaN in both haven't moved; they are looked for only if there are any.
    """
    scratch, kept = Scratch(), keep is not None
    try:
        roughly = Elementwise(region.shapes, partial(_roughly, scratch), pretrained, finetuned)
        values, indices, *ends = best(region, roughly, k, sources=kept)
    except NoNumberError:
        values, indices, *ends = best(region, movement(pretrained, finetuned, region), k, sources=kept)
    if not bool(is_finite(values).all()):
        raise NoNumberError("a parameter moved further than a number can say")
    if ends:
        keep(indices, *ends)
    return values, indices


def _roughly(scratch: Scratch, before: Tensor, after: Tensor) -> Tensor:
    return _size(subtracted(before, after, scratch=scratch))


def _size(moved: Tensor) -> Tensor:
    return moved.abs() if moved.is_complex() else moved.abs_()


def order_within(mask: GraftMask, pretrained: Tensors, values: Tensors) -> Tensor:
    """Region indices of a mask's parameters, furthest moved first, ties by region index; `values`: the fine-tuned ones at them.

    Of a mask of those that moved most the first k are the smaller one's, for every k.
    """
    before = values_at(pretrained, mask)
    moved = [distance(before[name], values[name]) for name in mask.region.shapes if name in before]
    return ordered(torch.cat(moved).cpu(), mask.region_indices()) if moved else mask.region_indices()


class Movement(Localizer):
    """The parameters that moved most in fine-tuning."""

    refuses_infinite: ClassVar[bool] = True

    def find(self, make_input: Callable[[], LocalizerInput], budgets: Sequence[Budget]) -> list[GraftMask]:
        """The mask of each budget; that of a single one needs no order, unless it is refined."""
        if len(budgets) != 1 or type(self) is not Movement:
            return super().find(make_input, budgets)
        given = make_input()
        return [movement_mask(given.pretrained, given.finetuned, given.region, budgets[0].k, given.keep)]

    def rank(self, given: LocalizerInput, k: int) -> Tensor:
        """Region indices of the k parameters that moved most."""
        return movement_order(given.pretrained, given.finetuned, given.region, k, given.keep)
