"""Grafts of two torch modules of one architecture: a pretrained `base`, and `tuned`, which was fine-tuned from it.

Heads are copied whole, since a new one has no pretrained values: all parameters of a top-level module named in HEADS, unless
they are in the region.  So do buffers that differ, such as the running statistics of BatchNorm.  All other parameters outside
the mask are the base's.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import ModelError, ParamsError
from .apply import take_at
from .mask import GraftMask
from .places import Places, swapped, write
from .region import Tensors, named_weights

# what DataParallel, torch.compile and peft put before the names
WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
HEADS = ("classifier", "classification_head", "score", "head", "heads", "fc", "qa_outputs")
# glob patterns such as `encoder.*.weight`, or a predicate of the name
Parameters = str | Sequence[str] | Callable[[str], bool] | None


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

    Heads (HEADS) and buffers that differ, such as the running statistics of BatchNorm, are those of `tuned`, whole.
    """
    model = copy.deepcopy(base)
    write(places_of(model, tuned, mask))
    return model


@contextmanager
def grafted(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> Iterator[nn.Module]:
    """The base itself as the graft of a mask inside `with`; afterwards what was swapped and buffers are as before (see `swapped`)."""
    with swapped(base, places_of(base, tuned, mask)):
        yield base


def places_of(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> Places:
    """What makes the base the graft of a mask; raises ModelError if the mask is of other models."""
    before, after = fitting(base, tuned, mask)
    buffers = {name for name, _ in base.named_buffers()}
    heads = heads_of(base) | {*mask.record.get("heads", ())}
    whole = [name for name in before if name in buffers or (name in heads and name not in mask.region.shapes)]
    places: Places = [(before[name], at, take_at(after[name], at)) for name, at in mask.indices.items()]
    return places + [(before[name], None, after[name].detach().clone()) for name in whole]


def fitting(base: nn.Module, tuned: nn.Module, mask: GraftMask) -> list[dict[str, Tensor]]:
    """Parameters and buffers of both; raises ModelError if they or the mask are of several architectures."""
    heads = {*mask.record.get("heads", ())} if isinstance(mask, GraftMask) else set()
    before, after = states_of(base, tuned, heads)
    require_mask(mask, before)
    return [before, after]


def require_mask(mask: GraftMask, weights: Tensors) -> None:
    """Raise ModelError unless the mask is of a model with these tensors, ParamsError if it is none."""
    if not isinstance(mask, GraftMask):
        raise ParamsError(f"mask: should be a GraftMask, not a {type(mask).__name__}")
    for name, shape in mask.region.shapes.items():
        if name not in weights or weights[name].shape != shape:
            raise ModelError(f"the mask is of other models: these have no {name} of the shape {[*shape]}")


def is_head(name: str) -> bool:
    """True for a parameter of a head, by its name."""
    while wrapper := next(filter(name.startswith, WRAPPERS), ""):
        name = name.removeprefix(wrapper)
    return name.partition(".")[0] in HEADS


def heads_of(model: nn.Module) -> set[str]:
    """Parameters of heads alone: a weight that a head shares with another part is none."""
    shared = {weight for name, weight in model.named_parameters(remove_duplicate=False) if not is_head(name)}
    return {name for name, weight in named_weights(model).items() if weight not in shared}


def states_of(base: nn.Module, tuned: nn.Module, whole: Collection[str] = ()) -> list[dict[str, Tensor]]:
    """Parameters and buffers of both, those of `tuned` on the device of the base; ModelError unless names, shapes and dtypes match.

    Heads and those in `whole` may have other shapes, such as a head of 1,000 classes that became one of 10.
    """
    for model in (base, tuned):
        if not isinstance(model, nn.Module):
            raise ParamsError(f"base and tuned should be torch modules, not a {type(model).__name__}")
        if empty := [name for name, weight in model.named_parameters() if weight.is_meta or is_lazy(weight)]:
            raise ModelError(f"{empty[0]} has no values yet: run the model once, or load its weights")
    sides = [{**named_weights(model), **dict(model.named_buffers())} for model in (base, tuned)]
    whole = heads_of(base) | {*whole}
    kinds = [
        {name: f"{'' if name in whole else [*values.shape]} of {values.dtype}" for name, values in side.items()}
        for side in sides
    ]
    for name in {**sides[0], **sides[1]}:
        first, second = (kind.get(name, "missing") for kind in kinds)
        if first != second:
            raise ModelError(
                f"the models need the same architecture and dtype: {name} is {first} in the base, {second} in the tuned one"
            )
    return [sides[0], {name: values.to(sides[0][name].device) for name, values in sides[1].items()}]
