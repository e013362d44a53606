"""Grafts of two torch modules of one architecture: a pretrained `base`, and `tuned`, which was fine-tuned from it.

Heads are copied whole, since a new one has no pretrained values: all parameters of a top-level module named in HEADS, unless
they are in the region.  So do buffers that differ, such as the running statistics of BatchNorm.  All other parameters outside
the mask are the base's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn

from ..errors import ModelError, ParamsError
from .apply import is_equal, take_at
from .mask import GraftMask
from .places import Places, swapped, write
from .region import Tensors, named_weights, unwrapped
from .states import copied, extra_states, heads_of, put_extra_states, require_separate, states_of

# glob patterns such as `encoder.*.weight`, or a predicate of the name
Parameters = str | Sequence[str] | Callable[[str], bool] | None
# a parameter or buffer by its name, flat indices in it (None: all of it), and values for these
Changes = list[tuple[str, Tensor | None, Tensor]]


def chosen(names: Sequence[str], parameters: Parameters, setting: str = "parameters") -> list[str]:
    """The names that match; raises ModelError if there are none, with the nearest name for a pattern that matches none."""
    if callable(parameters):
        found = [name for name in names if parameters(name)]
    else:
        patterns = "*" if parameters is None else parameters
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ParamsError(f"{setting}: {parameters!r} should be glob patterns or a function of the name")
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                nearest = "".join(
                    f"; the nearest is {name!r}" for name in get_close_matches(pattern, names, n=1, cutoff=0)
                )
                raise ModelError(f"{setting}: no parameter is called {pattern!r}{nearest}")
        found = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise ModelError(f"{setting}: matches none of the model's {len(names)} parameters")
    return found


def graft(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> nn.Module:
    """A new module: fine-tuned values inside the mask, pretrained ones outside (equation 1), bit for bit.

    Heads (HEADS), buffers that differ, such as the running statistics of BatchNorm, and extra states are those of `tuned`, whole.
    """
    changes = changes_of(base, tuned, mask)
    model = copied(base)
    write(places_in(model, changes))
    put_extra_states(model, extra_states(tuned))
    return model


@contextmanager
def grafted(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> Iterator[nn.Module]:
    """The base itself as `graft` makes it inside `with`; afterwards what was swapped and buffers are as before (see `swapped`)."""
    places, extra = places_in(base, changes_of(base, tuned, mask)), extra_states(base)
    with swapped(unwrapped(base), places):
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
    whole = [
        name for name in before if name in heads or (name in buffers and not is_equal(before[name], after[name]))
    ]
    changes: Changes = [(name, at, take_at(after[name], at)) for name, at in mask.indices.items() if len(at)]
    require_separate(before, [*whole, *(name for name, _, _ in changes)])
    return changes + [(name, None, after[name].detach().clone()) for name in whole]


def places_in(model: nn.Module, changes: Changes) -> Places:
    """The places of changes in a model."""
    tensors = {**named_weights(model), **dict(unwrapped(model).named_buffers())}
    return [(tensors[name], at, values) for name, at, values in changes]


def fitting(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> tuple[dict[str, Tensor], Tensors]:
    """Parameters and buffers of both (see `states_of`); raises ModelError if they or the mask are of several architectures."""
    before, after = states_of(base, tuned, named_heads(mask))
    require_mask(mask, before)
    return before, after


def named_heads(mask: GraftMask) -> set[str]:
    """The parameters that were named as heads when the mask was found; none of what is no mask, which `require_mask` refuses."""
    return {*mask.record.get("heads", ())} if isinstance(mask, GraftMask) else set()


def require_mask(mask: GraftMask, weights: Tensors) -> None:
    """Raise ModelError unless the mask is of a model with these tensors, ParamsError if it is none."""
    if not isinstance(mask, GraftMask):
        raise ParamsError(f"mask: should be a GraftMask, not a {type(mask).__name__}")
    for name, shape in mask.region.shapes.items():
        if name not in weights or weights[name].shape != shape:
            raise ModelError(f"the mask is of other models: these have no {name} of the shape {[*shape]}")
