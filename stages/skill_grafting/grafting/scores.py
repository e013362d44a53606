"""Masks of scores of one's own: of the whole region, within each tensor, row or column, or of whole rows and columns."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Literal, get_args

import torch
from torch import Tensor

from ..support.errors import ParamsError, did_you_mean
from .mask import GraftMask
from .region import Region
from .select import best, top_k

Per = Literal["region", "tensor", "row", "column", "rows", "columns"]


def mask_of(scores: Mapping[str, Tensor], size: float, per: Per = "region", largest: bool = True) -> GraftMask:
    """The mask of the highest scores, or of the lowest; exactly as many as asked for, ties by index.

    scores: for each parameter a tensor of its shape, of real numbers.  size: a share above 0 and at most 1, rounded down, or a whole
    number (so 1 is one, and 1.0 is all).  per: what the size is of: the whole `region`, each `tensor`, each `row` or `column` of each
    matrix; or `rows` or `columns`: that many whole ones of each matrix, by the sum of their scores, such as neurons.
    The difference of two such masks is a mask (`mask_of(a, 0.01) - mask_of(b, 0.01)`).  Raises ParamsError for other scores and sizes.
    """
    _require(scores, size, per)
    region = Region({name: tuple(values.shape) for name, values in scores.items()})
    sign = 1 if largest else -1
    ranked = {name: sign * _real(values) for name, values in scores.items()}
    if per == "region":
        return top_k(region, ranked, _count(size, region.size))
    found = {name: _places(values, size, per) for name, values in ranked.items()}
    return GraftMask(region, {name: at for name, at in found.items() if len(at)})


def _places(scores: Tensor, size: float, per: Per) -> Tensor:
    """Flat indices of one tensor's best, rising."""
    if per == "tensor":
        return best(Region({"": tuple(scores.shape)}), {"": scores}, _count(size, scores.numel()))[1].cpu()
    across = per in ("row", "rows")
    lines = scores.flatten(1) if across else scores.flatten(1).T
    if per in ("rows", "columns"):
        chosen = _highest(lines.double().sum(1), _count(size, len(lines)))[:, None].expand_as(lines)
    else:
        chosen = _highest(lines, _count(size, lines.shape[1]))
    return (chosen if across else chosen.T).reshape(-1).nonzero().view(-1).cpu()


def _highest(scores: Tensor, k: int) -> Tensor:
    """Which are the k highest along the last axis, the first of equals."""
    if not k:
        return torch.zeros_like(scores, dtype=torch.bool)
    least = scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    return above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))


def _count(size: float, of: int) -> int:
    return min(int(size), of) if isinstance(size, Integral) else int(size * of + 1e-9)


def _real(values: Tensor) -> Tensor:
    values = values.detach()
    return values.double() if not values.is_floating_point() else values.float() if values.itemsize < 4 else values


def _require(scores: object, size: object, per: object) -> None:
    if per not in get_args(Per):
        raise ParamsError(f"per: {per!r} is none of {', '.join(get_args(Per))}{did_you_mean(str(per), get_args(Per))}")
    whole = isinstance(size, Integral) and not isinstance(size, bool)
    if not (isinstance(size, Real) and not isinstance(size, bool)) or not (size >= 1 if whole else 0 < size <= 1):
        raise ParamsError(f"size: {size!r} should be a share above 0 and at most 1, or a whole number of parameters")
    if not isinstance(scores, Mapping) or not scores:
        raise ParamsError("scores: should be tensors by the names of the parameters")
    for name, values in scores.items():
        if not isinstance(values, Tensor) or values.is_complex() or not values.numel():
            raise ParamsError(
                f"scores: {name} should be a tensor of real numbers, one for each number of the parameter"
            )
        if values.is_meta:
            raise ParamsError(f"scores: {name} has no values in memory (it is on meta)")
        if per not in ("region", "tensor") and values.dim() < 2:
            raise ParamsError(f"scores: {name} has no rows and columns; leave it out, or take per='tensor'")
        if values.is_floating_point() and bool(_real(values).isnan().any()):
            raise ParamsError(f"scores: {name} has values that are no numbers")
