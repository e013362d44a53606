"""The tensors of a model that are to be written to, and whether nothing else would move with them; copies of models.

This is asked wherever values meet a model: of grafts, patches, and optimizers of a mask.
"""

import copy
import sys
from collections.abc import Collection
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..grafting.apply import Writes, write
from ..grafting.region import Tensors, named_weights, unwrapped
from ..support.errors import ModelError, one_line

# what is given is what comes back
Model = TypeVar("Model", bound=nn.Module)
# a parameter or buffer by its name, flat indices in it (None: all of it), and values for these
Changes = list[tuple[str, Tensor | None, Tensor]]


def writes_in(model: nn.Module, changes: Changes) -> Writes:
    """The changes as writes to a model's own tensors; raises ModelError if it can't be written to (see `writable`)."""
    _require_thawed(model)
    tensors = writable(model, {name for name, _, _ in changes})
    return [(tensors[name], at, values) for name, at, values in changes]


def writable(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """All parameters and buffers of a model by name; raises ModelError unless those of these names can be written to, and nothing moves with them."""
    tensors = tensors_in(model)
    for name in names:
        require_plain(name, tensors[name])
    _require_separate(tensors, names)
    return tensors


def tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a model by name, themselves."""
    return {**named_weights(model), **dict(unwrapped(model).named_buffers())}


def require_whole(model: nn.Module) -> None:
    """Raise ModelError for a model whose parameters are all empty, as they are where they are partitioned."""
    weights = named_weights(model)
    if weights and not any(is_lazy(weight) or weight.numel() for weight in weights.values()):
        what = f"the {type(unwrapped(model)).__name__}'s parameters are all empty, as where they are partitioned (ZeRO-3, FSDP)"
        raise ModelError(
            f"{what}: gather them first (deepspeed.zero.GatheredParameters), or load the saved model whole"
        )


def require_plain(name: str, values: Tensor) -> None:
    """Raise ModelError unless a parameter or buffer is numbers in memory of its own, of which each can be read and set."""
    kind, problem = type(values).__name__, ""
    if is_lazy(values):
        problem = "has no values yet: run the model once"
    elif type(values).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        problem = f"is a {kind}, sharded or packed by what made it: take the model as it was before, whole and in plain numbers"
    elif values.is_meta:
        problem = "has no values in memory (it is on meta): load the model whole, without device_map= or offloading"
    elif values.layout != torch.strided:
        problem = f"is sparse ({values.layout}), and single numbers are those of dense tensors: pass it as .to_dense()"
    elif values.dtype == torch.complex32:
        problem = "is torch.complex32, in which torch doesn't compute: turn it into torch.complex64"
    if problem:
        raise ModelError(f"{name} {problem}")


def copied_with(model: Model, changes: Changes) -> Model:
    """A copy of a module with these changes; raises ModelError if the module itself couldn't take them, as a copy may by having memory apart."""
    writes_in(model, changes)
    made = copied(model)
    write(writes_in(made, changes))
    return made


def copied(model: Model) -> Model:
    """A copy of the module itself, without the graphs of tensors that its parts computed (weight_norm, pruning); ModelError if there is none."""
    model, known = unwrapped(model), {}
    for part in model.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                known[id(value)] = value.detach().clone()
    try:
        with torch.no_grad():  # a ScriptModule's parameters would be copied with a graph, and take no gradient
            made = copy.deepcopy(model, known)
    except Exception as error:
        hint = "grafted(base, tuned, mask) grafts it in place"
        raise ModelError(f"the {type(model).__name__} can't be copied ({one_line(error)}); {hint}") from error
    for mine, own in zip(model.parameters(), made.parameters(), strict=False):
        if mine.requires_grad and not own.requires_grad:
            own.requires_grad_()
    return made


def _require_thawed(model: nn.Module) -> None:
    """Raise ModelError if a compiled model keeps its weights as constants, which no write changes."""
    config = sys.modules.get("torch._inductor.config")
    compiled = [
        part._compiled_call_impl or part
        for part in model.modules()
        if part._compiled_call_impl or "_orig_mod" in part._modules
    ]
    # of its own options, or of all that is compiled
    own = [getattr(one, "get_compiler_config", lambda: None)() or {} for one in compiled]
    if compiled and (getattr(config, "freezing", False) or any(one.get("freezing") for one in own)):
        hint = "compile it without the option freezing (torch._inductor.config.freezing = False)"
        raise ModelError(f"the model is compiled with freezing, which keeps its weights as constants: {hint}")


def _require_separate(tensors: Tensors, written: Collection[str]) -> None:
    """Raise ModelError if a number that would be written to belongs to two names, or twice to one, without being of one parameter."""
    stored: dict[int, list[str]] = {}
    for name, values in tensors.items():
        if values.layout == torch.strided and not values.is_meta and values.numel():
            stored.setdefault(values.untyped_storage().data_ptr(), []).append(name)
    for names in stored.values():
        for name in [one for one in names if one in written]:
            values = tensors[name]
            twice = any(size > 1 and stride == 0 for size, stride in zip(values.shape, values.stride(), strict=True))
            others = [other for other in names if other != name and _overlap(values, tensors[other])]
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
