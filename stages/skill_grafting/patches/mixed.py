"""Several patches in one batch: each row of a batch under its own patch, or under none."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

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
    layers: dict[nn.Module, dict[Hashable, dict[str, Tensor]]] = {}
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


def _differences(model: nn.Module, patch: Patch) -> dict[str, Tensor]:
    """What a patch adds to each parameter: a sparse matrix for a weight, a row for a bias."""
    if patch.head:
        raise ModelError(f"{min(patch.head)} travels whole, and a batch has one of it; patch.on takes it")
    weights, found = named_weights(model), {}
    for name, at in patch.mask.indices.items():
        module, _, part = name.rpartition(".")
        if type(model.get_submodule(module)) is not nn.Linear:
            raise ModelError(f"{name} is of no linear layer, so rows can't have it apart; leave it out by parameters=")
        weight = weights[name].detach()
        moved = patch.values[name].to(weight) - take_at(weight, at)
        if part == "bias":
            found[name] = torch.zeros_like(weight).index_put_((at.to(weight.device),), moved)
            continue
        places = torch.stack([at // weight.shape[1], at % weight.shape[1]]).to(weight.device)
        matrix = torch.sparse_coo_tensor(places, moved, weight.shape, is_coalesced=True, check_invariants=False)
        found[name] = matrix
    return found


def _add(
    parts: Mapping[Hashable, tuple[Tensor, dict[str, Tensor]]], count: int, _: nn.Module, inputs: tuple, output: Tensor
) -> Tensor:
    given = inputs[0]
    if len(given) != count:
        raise ParamsError(f"rows: {count} were named, and the batch has {len(given)}")
    output = output.clone()
    for at, differences in parts.values():
        if not len(at):
            continue
        at = at.to(given.device)
        rows = given[at]
        if "weight" in differences:
            flat = rows.reshape(-1, rows.shape[-1])
            added = torch.sparse.mm(differences["weight"].to(flat.dtype), flat.T).T
            output.index_add_(0, at, added.reshape(*rows.shape[:-1], -1).to(output.dtype))
        if "bias" in differences:
            row = differences["bias"].to(output.dtype)
            output.index_add_(0, at, row.expand(len(at), *output.shape[1:]))
    return output
