"""Stitching: grafts of several tasks on one pretrained model, joined into one (He et al., 2024).

The joined mask is the union.  Where a single graft selects a parameter, its value is copied, bit for
bit.  Where several do, they collide, and a rule decides:

* mean: the mean of their values, as in Localize-and-Stitch;
* sum: the pretrained value and the sum of their movements, as task arithmetic has it;
* sequence: the value of the last graft that selects it, as if grafted one after another;
* largest: the value that moved furthest, of equally far ones the first graft's.

Mean and sum give the same bits for every order of the grafts.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from ..errors import MaskError
from ..grafting.mask import GraftMask
from ..grafting.mask_file import StoredMask
from ..grafting.region import Tensors
from .names import LARGEST, MEAN, SEQUENCE, SUM


def stitch(grafts: Sequence[StoredMask], pretrained: Tensors, rule: str) -> tuple[GraftMask, dict[str, Tensor]]:
    """The union of masks of one region, and the values at it; of the grafts only masks and values are looked at.

    Raises MaskError for values that are more than their type holds.
    """
    indices, values = {}, {}
    for name in grafts[0].mask.region.shapes:
        there = [graft for graft in grafts if name in graft.mask.indices]
        if there:
            indices[name], values[name] = _joined(there, name, pretrained[name], rule)
    return GraftMask(grafts[0].mask.region, indices), values


def _joined(grafts: Sequence[StoredMask], name: str, pretrained: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Sorted flat indices of the union in one tensor, and their values."""
    indices = torch.cat([graft.mask.indices[name] for graft in grafts]).unique(sorted=True)
    kind = reduce(torch.promote_types, (graft.values[name].dtype for graft in grafts))
    start = pretrained.detach().reshape(-1)[indices]
    values = start.to(torch.promote_types(kind, start.dtype)).repeat(len(grafts), 1)
    selected = torch.zeros(values.shape, dtype=torch.bool)
    for row, graft in enumerate(grafts):
        places = torch.searchsorted(indices, graft.mask.indices[name])
        values[row, places], selected[row, places] = graft.values[name].to(values), True
    chosen = _of_row(values, selected.int().argmax(0))
    colliding = selected.sum(0) > 1
    chosen[colliding] = _RULES[rule](values[:, colliding], selected[:, colliding], start[colliding]).to(chosen)
    chosen = chosen.to(kind)
    if not bool(chosen.isfinite().all()):
        raise MaskError(f"{name}: the {rule} of these grafts is more than {kind} holds; take another rule")
    return indices, chosen


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
_RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    MEAN: _mean,
    SUM: _sum,
    SEQUENCE: _sequence,
    LARGEST: _largest,
}


def _total(numbers: Tensor) -> Tensor:
    """Sums of the columns; sorted first, so that the order of the rows can't show."""
    return numbers.sort(0).values.sum(0)


def _of_row(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(0, rows.reshape(1, -1)).reshape(-1)
