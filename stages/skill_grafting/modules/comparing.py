"""The states of two models side by side: whether one can be the other after fine-tuning, and the values of both.

All that changes what a model computes is its state, and what a graft can't take over is refused in a line: another kind or
setting of a part, adapters that one of the two has merged, numbers that two names share.  Tables that a model makes itself
(buffers that it doesn't save) and that grow with its inputs are no part of its architecture.
"""

import copy
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..grafting.apply import holds
from ..grafting.differences import is_equal
from ..grafting.region import Tensors, named_weights, unwrapped
from ..models.blocks import heads_of, is_head
from ..support.errors import ModelError, ParamsError, a_kind, one_line, shown
from .targets import require_plain, require_whole, tensors_in

# what a layer of peft's says about its adapters
ADAPTERS = ("merged_adapters", "active_adapters", "disable_adapters")
# settings of a part that change nothing in eval mode, or that running it changes
HARMLESS = re.compile(
    "num_labels|training|drop|momentum|checkpoint|cache|count|call|seen|step|epoch|iter|max_|name|tags|missing|tied_weights|vocab_size"
)
SETTINGS = (bool, int, float, str, type(None))


def tensors_of(
    base: nn.Module, tuned: nn.Module, whole: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of both under the base's names.

    The fine-tuned numbers may be of a narrower type than the base's, which holds them exactly.  Heads and those in `whole` may
    have other shapes, such as a head of 1,000 classes that became one of 10.  Where one parameter has two names in one of the models, the
    other may have two parameters of these names: the base any, and the tuned model equal ones.  Raises ModelError if one model can't be
    the other after fine-tuning.
    """
    before, after = (_state(model) for model in (base, tuned))
    models = [unwrapped(model) for model in (base, tuned)]
    _require_same_adapters(*models)
    whole = heads_of(base) | {*whole}
    for name in _tables(models[0]) | _tables(models[1]):
        if not _is_fit(before.get(name), after.get(name)):
            before.pop(name, None), after.pop(name, None)
    _require_unwrapped(before, after)
    _join_ties(models[0], after)
    after |= {
        name: after[known] for name, known in _shared_names(models[1]).items() if name in before and name not in after
    }
    tokens = [_table_sizes(model) for model in models]
    for name in {**before, **after}:
        require_fit(name, before.get(name), after.get(name), name in whole, _about_tokens(name, *tokens))
    _require_alike(*models, whole)
    _require_known(*models)
    return before, {name: after[name] for name in before}


def extra_states(model: nn.Module) -> dict[str, Any]:
    """What parts say of themselves beside parameters and buffers (torch's `get_extra_state`), by their names, as copies."""
    parts = unwrapped(model).named_modules()
    return {name: copy.deepcopy(part.get_extra_state()) for name, part in parts if _has_extra(part)}


def put_extra_states(model: nn.Module, states: Mapping[str, Any]) -> None:
    """Give parts their `extra_states`; raises ModelError if one can't take it."""
    for name, state in states.items():
        try:
            unwrapped(model).get_submodule(name).set_extra_state(copy.deepcopy(state))
        except Exception as error:
            raise ModelError(f"{name or 'the model'}: its extra state can't be set: {one_line(error)}") from error


def _state(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; ParamsError for what is no module, ModelError for numbers that aren't plain."""
    if not isinstance(model, nn.Module):
        raise ParamsError(f"base and tuned should be torch modules, not {a_kind(model)}")
    require_whole(model)
    tensors = tensors_in(model)
    for name, values in tensors.items():
        require_plain(name, values)
    return {name: values.detach() for name, values in tensors.items()}


def _shared_names(model: nn.Module) -> dict[str, str]:
    """Name -> the name by which `named_weights` knows a parameter that has several."""
    known = {weight: name for name, weight in named_weights(model).items()}
    names = {name: known[weight] for name, weight in model.named_parameters(remove_duplicate=False)}
    return {name: other for name, other in names.items() if name != other}


def _join_ties(base: nn.Module, after: dict[str, Tensor]) -> None:
    """Take from the tuned model's tensors what is one with another in the base, and equal to it; ModelError if it is not."""
    for name, known in _shared_names(base).items():
        if name in after and known in after and not is_equal(after.pop(name), after[known]):
            place = f"base.{name}"
            saved = "base.config.tie_word_embeddings = False and " if hasattr(base, "config") else ""
            untied = f"the base has two, too, after {saved}{place} = torch.nn.Parameter({place}.detach().clone())"
            raise ModelError(f"{name} and {known} are one parameter in the base and two in the tuned model: {untied}")


def _about_tokens(name: str, *tables: dict[str, int]) -> str:
    """What makes two vocabularies of transformers of one size, if a parameter is a table of tokens, of which both models' are given."""
    sizes = [table.get(name) for table in tables]
    if None in sizes or sizes[0] == sizes[1]:
        return ""
    return f"; {('base', 'tuned')[sizes[0] > sizes[1]]}.resize_token_embeddings({max(sizes)}) gives both as many tokens"


def _table_sizes(model: nn.Module) -> dict[str, int]:
    """Parameters with a row for each token, and how many there are."""
    tables: list[Tensor] = []
    for which in ("input", "output"):
        with suppress(NotImplementedError):  # of models that read no tokens
            part = getattr(model, f"get_{which}_embeddings", lambda: None)()
            tables += part.parameters() if isinstance(part, nn.Module) else []
    return {name: len(weight) for name, weight in named_weights(model).items() if any(weight is one for one in tables)}


def _tables(model: nn.Module) -> set[str]:
    """Names of the buffers that the model doesn't save."""
    parts = model.named_modules()
    return {f"{name}.{own}" if name else own for name, part in parts for own in part._non_persistent_buffers_set}


def _has_extra(part: nn.Module) -> bool:
    return type(part).get_extra_state is not nn.Module.get_extra_state


def _kind(values: Tensor | None, whole: bool) -> str:
    return "missing" if values is None else f"{'' if whole else [*values.shape]} of {values.dtype}"


def _is_fit(before: Tensor | None, after: Tensor | None, whole: bool = False) -> bool:
    """True for tensors of one shape, unless they travel whole, of which the first one's type holds the second one's numbers."""
    there = before is not None and after is not None
    return there and (whole or before.shape == after.shape) and holds(before.dtype, after.dtype)


def require_fit(name: str, before: Tensor | None, after: Tensor | None, whole: bool = False, hint: str = "") -> None:
    """Raise ModelError unless the base's type holds the numbers of the tuned model's tensor, which has its shape unless it travels whole."""
    if _is_fit(before, after, whole):
        return
    first, second = _kind(before, whole), _kind(after, whole)
    if (
        before is not None
        and after is not None
        and before.shape == after.shape
        and before.is_floating_point()
        and after.is_floating_point()
    ):
        hint = f"; pass base.to({after.dtype}), or tuned.to({before.dtype}), which rounds it"
    what = f"{name} is {first} in the base, {second} in the tuned one"
    raise ModelError(f"the models need the same architecture and dtype: {what}{hint}")


def _require_same_adapters(base: nn.Module, tuned: nn.Module) -> None:
    sides = [
        {name: found for name, part in model.named_modules() if (found := _adapters(part))} for model in (base, tuned)
    ]
    if bool(sides[0]) != bool(sides[1]):
        whose = "base" if sides[0] else "tuned"
        problem = f"the {whose} model has live adapters of peft and the other has none"
        raise ModelError(f"{problem}: pass {whose}.merge_and_unload()")
    for name in [one for one in sides[0] if one in sides[1]]:
        for what, first in sides[0][name].items():
            if first != (second := sides[1][name].get(what)):
                problem = f"{name}: {what} is {shown(first)} in the base and {shown(second)} in the tuned one"
                raise ModelError(f"{problem}; make them alike, or pass merge_and_unload() of both")


def _adapters(part: nn.Module) -> dict[str, Any]:
    """What a part of peft's says about its adapters; models of transformers have methods of these names."""
    found = {what: getattr(part, what, None) for what in ADAPTERS}
    return {what: value for what, value in found.items() if isinstance(value, bool | list)}


def _require_unwrapped(before: Tensors, after: Tensors) -> None:
    """Raise ModelError if one model's names are the other's behind the name of a part, which is that model."""
    for title, names, others in (("base", before, after), ("tuned", after, before)):
        prefix = next(iter(names), "").removesuffix(next(iter(others), ""))
        if prefix.endswith(".") and {*names} == {f"{prefix}{other}" for other in others}:
            part = prefix.rstrip(".")
            raise ModelError(f"the {title} model has the other one in its part {part}: pass {title}.{part}")


def _require_known(base: nn.Module, tuned: nn.Module) -> None:
    """Raise ModelError if the models save something else that differs, as quantised layers save their packed weights."""
    saved = [_other_state(model) for model in (base, tuned)]
    for name in {**saved[0], **saved[1]}:
        first, second = (side.get(name) for side in saved)
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            alike = first.dtype == second.dtype and torch.equal(first, second.to(first.device))
        else:
            alike = isinstance(first, (*SETTINGS, torch.dtype)) and first == second
        if not alike:
            problem = f"{name} is saved with a model and is no parameter or buffer, so it can't be grafted"
            raise ModelError(f"{problem}: graft before you quantise, or take both models without it")


def _other_state(model: nn.Module) -> dict[str, Any]:
    """What a model's `state_dict` has beside parameters, buffers and extra states."""
    known = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    ids, state = {id(one) for one in known.values()}, model.state_dict(keep_vars=True)
    others = {name: one for name, one in state.items() if name not in known and id(one) not in ids}
    return {name: one for name, one in others.items() if not name.endswith("_extra_state")}


def _require_alike(base: nn.Module, tuned: nn.Module, heads: Collection[str]) -> None:
    """Raise ModelError if parts of the two models are of other kinds or have other settings; those of heads may."""
    parts = [dict(model.named_modules()) for model in (base, tuned)]
    known = {name.rpartition(".")[0] for name in named_weights(base).keys() - heads}
    for name in {**parts[0], **parts[1]}:
        first, second = (side.get(name) for side in parts)
        kinds = [type(part).__name__ if part is not None else "missing" for part in (first, second)]
        of_head = any(one.startswith(f"{name}.") for one in heads) and not any(
            one == name or one.startswith(f"{name}.") for one in known
        )
        if is_head(name) or of_head or any(isinstance(part, nn.Dropout | nn.Identity) for part in (first, second)):
            continue
        if name and kinds[0] != kinds[1]:
            what = f"{name} is {kinds[0]} in the base, {kinds[1]} in the tuned one"
            raise ModelError(f"the models need the same architecture and dtype: {what}")
        own = [{key: value for key, value in vars(part).items() if _is_setting(key, value)} for part in (first, second)]
        # of a table it is about gradients alone; what counts positions from it has one itself
        if isinstance(first, nn.Embedding) or hasattr(first, "base_model_prefix"):
            own[0].pop("padding_idx", None)
        for key in own[0].keys() & own[1].keys():
            values = [side[key] for side in own]
            if values[0] != values[1] and values[0] == values[0]:  # NaN is none
                what = f"{name}.{key} is {shown(values[0])} in the base, {shown(values[1])} in the tuned one"
                raise ModelError(
                    f"{what.removeprefix('.')}: what isn't in parameters or buffers can't be grafted; make it alike"
                )


def _is_setting(key: str, value: object) -> bool:
    if key.startswith("_") or HARMLESS.search(key):
        return False
    if isinstance(value, dict):
        return all(isinstance(one, SETTINGS) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(one, SETTINGS) for one in value)
    return isinstance(value, SETTINGS)
