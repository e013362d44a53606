"""Grafts of two torch modules of one architecture: a pretrained `base`, and `tuned`, which was fine-tuned from it.

Heads are copied whole, since a new one has no pretrained values: all parameters of a top-level module named in HEADS, unless
they are in the region.  So are buffers that differ, such as the running statistics of BatchNorm.  All other parameters outside
the mask are the base's.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..grafting.apply import Writes, take_at, write
from ..grafting.differences import is_equal
from ..grafting.mask import GraftMask, named_heads, require_mask
from ..grafting.region import Tensors, named_weights, unwrapped
from ..support.errors import ModelError
from .comparing import copied, extra_states, heads_of, put_extra_states, tensors_of
from .swapping import swapped

# a parameter or buffer by its name, flat indices in it (None: all of it), and values for these
Changes = list[tuple[str, Tensor | None, Tensor]]


def graft(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> nn.Module:
    """Make a new module with fine-tuned values inside the mask and pretrained values outside (equation 1), bit for bit.

    Heads, buffers that differ (such as the running statistics of BatchNorm) and extra states are taken from `tuned` whole.  Raises
    ModelError if the models or the mask don't fit each other.
    """
    changes = changes_of(base, tuned, mask)
    model = copied(base)
    write(writes_in(model, changes))
    put_extra_states(model, extra_states(tuned))
    return model


@contextmanager
def grafted(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> Iterator[nn.Module]:
    """Turn the base itself into the graft inside `with`; afterwards it is as before, bit for bit, whatever happened."""
    writes, extra = writes_in(base, changes_of(base, tuned, mask)), extra_states(base)
    with swapped(unwrapped(base), writes):
        try:
            put_extra_states(base, extra_states(tuned))
            yield base
        finally:
            put_extra_states(base, extra)


def changes_of(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> Changes:
    """What makes the base the graft of a mask; raises ModelError if the mask is of other models."""
    before, after = fitting(base, tuned, mask)
    heads = (heads_of(base) | named_heads(mask)) - mask.region.shapes.keys()
    buffers = before.keys() - named_weights(base).keys()
    whole = [name for name in before if name in heads or (name in buffers and not is_equal(before[name], after[name]))]
    changes: Changes = [(name, at, take_at(after[name], at)) for name, at in mask.indices.items() if len(at)]
    _require_separate(before, [*whole, *(name for name, _, _ in changes)])
    return changes + [(name, None, after[name].detach().clone()) for name in whole]


def writes_in(model: nn.Module, changes: Changes) -> Writes:
    """The writes of changes in a model."""
    tensors = {**named_weights(model), **dict(unwrapped(model).named_buffers())}
    return [(tensors[name], at, values) for name, at, values in changes]


def fitting(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> tuple[dict[str, Tensor], Tensors]:
    """Parameters and buffers of both (see `tensors_of`); raises ModelError if they or the mask are of several architectures."""
    before, after = tensors_of(base, tuned, named_heads(mask))
    require_mask(mask, before)
    return before, after


def _require_separate(before: Tensors, written: Collection[str]) -> None:
    """Raise ModelError if a number that would be written to belongs to two names, or twice to one, without being of one parameter."""
    stored: dict[int, list[str]] = {}
    for name, values in before.items():
        if values.numel():
            stored.setdefault(values.untyped_storage().data_ptr(), []).append(name)
    for names in stored.values():
        for name in [one for one in names if one in {*written}]:
            twice = any(
                size > 1 and stride == 0 for size, stride in zip(before[name].shape, before[name].stride(), strict=True)
            )
            others = [other for other in names if other != name and _overlap(before[name], before[other])]
            if twice or others:
                both = f"{name} and {others[0]}" if others else f"entries of {name}"
                hint = "make them one parameter, or give each its own numbers by .clone()"
                raise ModelError(f"{both} share memory, so that they can't be grafted apart: {hint}")


def _overlap(first: Tensor, second: Tensor) -> bool:
    """True if two tensors of one storage have a number in common."""
    spans = [(one.storage_offset(), one.storage_offset() + _reach(one)) for one in (first, second)]
    if spans[0][0] >= spans[1][1] or spans[1][0] >= spans[0][1]:
        return False
    known = [torch.arange(max(end for _, end in spans)).as_strided(*_layout(one)).unique() for one in (first, second)]
    return bool(torch.isin(*known).any())


def _reach(values: Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))


def _layout(values: Tensor) -> tuple:
    return values.shape, values.stride(), values.storage_offset()
