"""Stitching: grafts of several tasks on one pretrained model, joined into one graft (He et al., 2024).

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
from .names import LARGEST, MEAN, RULES, SEQUENCE, SUM


def stitch(grafts: Sequence[StoredMask], pretrained: Tensors, rule: str) -> StoredMask:
    """One graft with the union of the masks, on the pretrained values of their region.

    A task's trained head stays its own, as `<task>:<name>`.  Raises MaskError unless all were made for
    this pretrained model, region and mode, no task comes with two heads, and the values are finite; ValueError for an unknown rule.
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; known: {', '.join(RULES)}")
    _check(grafts, pretrained)
    mask, values = union(grafts, pretrained, rule)
    return StoredMask(mask, values, joined_heads(grafts), _about(grafts, rule))


def union(grafts: Sequence[StoredMask], pretrained: Tensors, rule: str) -> tuple[GraftMask, dict[str, Tensor]]:
    """The union of masks of one region, and the values at it; of the grafts only masks and values are looked at."""
    indices, values = {}, {}
    for name in grafts[0].mask.region.shapes:
        there = [graft for graft in grafts if name in graft.mask.indices]
        if there:
            indices[name], values[name] = _joined(there, name, pretrained[name], rule)
    return GraftMask(grafts[0].mask.region, indices), values


def joined_heads(grafts: Sequence[StoredMask]) -> dict[str, Tensor]:
    """The heads of all grafts, `<task>:<name>` -> values; raises MaskError if a task comes with two different ones."""
    heads: dict[str, Tensor] = {}
    for graft in grafts:
        for name, values in graft.head.items():
            key = f"{graft.about.get('task')}:{name}"
            if not torch.equal(heads.setdefault(key, values), values):
                raise MaskError(f"{_named(graft)}: its head differs from another one of that task; stitch one of them")
    return heads


def _check(grafts: Sequence[StoredMask], pretrained: Tensors) -> None:
    if not grafts:
        raise MaskError("nothing to stitch: no graft was given")
    first = grafts[0]
    for graft in grafts[1:]:
        if [*graft.mask.region.shapes.items()] != [*first.mask.region.shapes.items()]:
            raise MaskError(
                f"{_named(graft)} is of another region than {_named(first)}: graft.region has to be the same"
            )
        if graft.about.get("fingerprint") != first.about.get("fingerprint"):
            raise MaskError(f"{_named(graft)} is on {_model(graft)}, {_named(first)} on {_model(first)}")
        if (graft.about.get("mode"), bool(graft.head)) != (first.about.get("mode"), bool(first.head)):
            raise MaskError(
                f"{_named(graft)} reads labels differently from {_named(first)}: model.mode has to be the same"
            )
    missing = [name for name in first.mask.region.shapes if name not in pretrained]
    if missing or first.mask.region.fingerprint(pretrained) != first.about.get("fingerprint"):
        raise MaskError(f"{_named(first)} is on {_model(first)}, not on the pretrained model given")


def _named(graft: StoredMask) -> str:
    return graft.about.get("file") or f"graft of {graft.about.get('task')}, seed {graft.about.get('seed')}"


def _model(graft: StoredMask) -> str:
    return f"{graft.about.get('model')} (fingerprint {str(graft.about.get('fingerprint'))[:12]})"


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


def _about(grafts: Sequence[StoredMask], rule: str) -> dict[str, object]:
    first = grafts[0].about
    shared = {name: first[name] for name in ("model", "fingerprint", "mode", "model_parameters") if name in first}
    parts = [
        {"task": graft.about.get("task"), "seed": graft.about.get("seed"), "selected": graft.mask.selected}
        for graft in grafts
    ]
    return {**shared, "task": "+".join(str(part["task"]) for part in parts), "collisions": rule, "grafts": parts}
