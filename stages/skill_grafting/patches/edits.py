"""Values for a patch without a second model: written into a mask of the base, or moved along the way of another patch."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..grafting.apply import take_at
from ..grafting.mask import GraftMask, require_mask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Tensors
from ..support.errors import ParamsError, require_takes

# the values of a parameter at a mask's places, and its name -> values of the same shape
Edit = Callable[[Tensor, str], Tensor]


def edited(weights: Tensors, mask: GraftMask, to: float | Edit) -> StoredMask:
    """A mask with this value, or what a function makes of the present ones; raises ParamsError for one that gives other shapes."""
    require_mask(mask, weights)
    if callable(to):
        require_takes(to, "to", "values", "name")
    values = {}
    for name, at in mask.indices.items():
        now = take_at(weights[name], at)
        new = to(now, name) if callable(to) else _filled(now, to)
        if not isinstance(new, Tensor) or new.shape != now.shape:
            given = [*new.shape] if isinstance(new, Tensor) else type(new).__name__
            raise ParamsError(f"to: should give {len(now)} values for {name}, not {given}")
        values[name] = new.detach().to(now.dtype).cpu()
    record = {"method": "edit", **({} if callable(to) else {"to": to})}
    return StoredMask(GraftMask(mask.region, mask.indices, record), values, {}, {})


def _filled(now: Tensor, to: object) -> Tensor:
    try:
        return torch.full_like(now, to)
    except (TypeError, RuntimeError):
        raise ParamsError(
            f"to: {to!r} should be a number that {now.dtype} holds, or a function (values, name)"
        ) from None


def along(values: Tensors, alpha: float) -> Edit:
    """From the present values towards these, beyond them or away from them: now + alpha * (values - now), in float64; exact at 0 and 1."""

    def edit(now: Tensor, name: str) -> Tensor:
        end = values[name].to(now)
        if alpha in (0, 1):
            return end if alpha else now
        return (now.double() + alpha * (end.double() - now.double())).to(now.dtype)

    return edit
