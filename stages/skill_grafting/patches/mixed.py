"""Several patches in one batch: each row of a batch under its own patch, or under none."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..grafting.apply import take_at
from ..grafting.region import named_weights
from ..support.errors import ModelError, ParamsError
from .patch import Patch


@contextmanager
def mixed(model: nn.Module, patches: Mapping[Hashable, Patch], rows: Sequence[Hashable | None]) -> Iterator[nn.Module]:
    """The base inside `with` such that row i of a batch is computed under `patches[rows[i]]`; None is the base itself.

    The model isn't changed: the patched differences, which are sparse, are added to the outputs of linear layers, so that results may
    differ from those of `patch.on` in their last bits.  Refused by name is all that is no weight or bias of a linear layer, and what
    travels whole.  Raises MaskError for a patch of another base, ParamsError for rows that name no patch.
    """
    if strange := [row for row in rows if row is not None and row not in patches]:
        raise ParamsError(f"rows: {strange[0]!r} is none of the patches ({', '.join(map(str, patches))})")
    layers: dict[nn.Module, dict[Hashable, dict[str, Any]]] = {}
    for key, patch in patches.items():
        patch.require(model)
        for name, difference in _differences(model, patch).items():
            module, _, part = name.rpartition(".")
            layers.setdefault(model.get_submodule(module), {}).setdefault(key, {})[part] = difference
    where = {key: torch.tensor([place for place, row in enumerate(rows) if row == key]) for key in patches}
    hooks = [
        layer.register_forward_hook(
            partial(_add, {key: (where[key], parts) for key, parts in found.items()}, len(rows))
        )
        for layer, found in layers.items()
    ]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()


def _differences(model: nn.Module, patch: Patch) -> dict[str, Any]:
    """What a patch adds to each parameter: to a bias a row, to a weight the rows it writes, and its numbers' rows among these, columns, values."""
    if patch.head:
        raise ModelError(f"{min(patch.head)} travels whole, and a batch has one of it; patch.on takes it")
    weights, found = named_weights(model), {}
    for name, at in patch.mask.indices.items():
        module, _, part = name.rpartition(".")
        if type(model.get_submodule(module)) is not nn.Linear:
            raise ModelError(f"{name} is of no linear layer, so rows can't have it apart; patch.on takes it")
        weight = weights[name].detach()
        moved = patch.values[name].to(weight) - take_at(weight, at)
        if part == "bias":
            found[name] = torch.zeros_like(weight).index_put_((at.to(weight.device),), moved)
            continue
        rows, within = (at // weight.shape[1]).unique(return_inverse=True)
        places = (rows, within, at % weight.shape[1], moved)
        found[name] = tuple(one.to(weight.device) for one in places)
    return found


def _add(
    parts: Mapping[Hashable, tuple[Tensor, dict[str, Any]]], count: int, _: nn.Module, inputs: tuple, output: Tensor
) -> Tensor:
    given = inputs[0]
    if len(given) != count:
        raise ParamsError(f"rows: {count} were named, and the batch has {len(given)}")
    for at, differences in parts.values():
        if len(at):
            at = at.to(given.device)
            _add_to(output, at, given[at], differences)
    return output


def _add_to(output: Tensor, at: Tensor, rows: Tensor, differences: Mapping[str, Any]) -> None:
    """Add to these rows of a layer's output, which nothing else reads yet, what a patch makes of its input there; in place."""
    if "weight" in differences:
        written, within, read, moved = differences["weight"]
        flat = rows.reshape(-1, rows.shape[-1]).T
        sums = flat.new_zeros(len(written), flat.shape[1]).index_add_(0, within, flat[read] * moved[:, None].to(flat))
        added = sums.T.reshape(*rows.shape[:-1], -1).to(output.dtype)
        inner = output.movedim(-1, 1)  # a view: rows and outputs first
        inner[at[:, None], written] += added.movedim(-1, 1)
    if "bias" in differences:
        output[at] += differences["bias"].to(output.dtype)
