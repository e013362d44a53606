"""Training the entries of a mask alone: parameters as an optimizer sees them, and any torch optimizer on them."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..grafting.apply import put_at, take_at
from ..grafting.mask import GraftMask, require_mask
from ..grafting.region import named_weights
from ..support.errors import MaskError, ModelError, ParamsError, one_line

# entry of an optimizer's state_dict: whose state it is
KEY = "mask"


class MaskedParameters:
    """Parameters as the optimizer sees them: whole weights, or only the entries of them that a mask selects.

    Zeroing the gradient outside a mask would not keep those entries still: weight decay, momentum and Adam move them without
    one.  So the selected entries are gathered into leaves of their own, which are all the optimizer knows: its state has as
    many entries as the mask, and nothing else can move.

    `values`: name -> the tensor that the optimizer steps, in the order of the weights.

    A weight outside the mask's region is its own leaf, as every weight is without a mask, and so is one
    that is selected whole.  Of any other weight inside it the selected entries are a copy of shape
    (number selected,), and if none is selected it has no leaf.  Raises ValueError if the mask selects
    from a weight that isn't trained, or if nothing is left to train.
    """

    def __init__(self, weights: dict[str, Tensor], only: GraftMask | None = None) -> None:
        self._weights = weights
        self._at = {} if only is None else _on_device_of(weights, only)
        untouched = {} if only is None else only.region.shapes.keys() - only.indices.keys()
        self.values: dict[str, Tensor] = {}
        for name, weight in weights.items():
            if name in self._at:
                self.values[name] = take_at(weight, self._at[name])
            elif name not in untouched:
                self.values[name] = weight
        if not self.values:
            raise ValueError("nothing to train: no weights, or a mask that selects none of them")

    def clear(self, set_to_none: bool = True) -> None:
        """Clear all gradients of the weights."""
        for weight in self._weights.values():
            if set_to_none or weight.grad is None:
                weight.grad = None
            else:
                weight.grad.zero_()

    def clip(self, norm: float) -> None:
        """Shorten the gradient of all weights together to this norm, whatever the mask takes of it."""
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), norm)

    def take_gradients(self) -> None:
        """Copy the gradients of the selected entries to their leaves."""
        for name, indices in self._at.items():
            gradient = self._weights[name].grad
            if gradient is not None and gradient.is_sparse:
                gradient = gradient.to_dense()
            self.values[name].grad = None if gradient is None else take_at(gradient, indices)

    def take_values(self) -> None:
        """Copy the selected entries to their leaves, on the weights' device and in their dtype."""
        for name, indices in self._at.items():
            self.values[name].data = take_at(self._weights[name], indices)

    @torch.no_grad()
    def write_back(self) -> None:
        """Write every gathered leaf back into its weight."""
        for name, indices in self._at.items():
            put_at(self._weights[name], indices, self.values[name])

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the leaves."""
        return {name: values.detach().clone() for name, values in self.values.items()}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Put the values of a snapshot back, into the weights too."""
        for name, values in snapshot.items():
            self.values[name].copy_(values)
        self.write_back()


def _on_device_of(weights: dict[str, Tensor], only: GraftMask) -> dict[str, Tensor]:
    frozen = only.indices.keys() - weights.keys()
    if frozen:
        raise ValueError(f"the mask selects from {min(frozen)}, which is not trained")
    parts = {name: indices for name, indices in only.indices.items() if len(indices) < weights[name].numel()}
    return {name: indices.to(weights[name].device) for name, indices in parts.items()}


def masked_optimizer(model: nn.Module, mask: GraftMask, make: Callable[..., Optimizer], **options: Any) -> Optimizer:
    """An optimizer that moves only the entries that a mask selects: make(leaves, **options), with `make` such as torch.optim.AdamW.

    Nothing else can move, not even by weight decay, and the optimizer's state is as large as the mask.  `backward` on the model and
    `step` on the optimizer work as always, in your own loop or as `optimizers=(this, None)` of transformers' Trainer.  `zero_grad` clears
    the gradients of the weights that the mask selects from; `requires_grad_(False)` spares those of all others.  Gradient scalers
    (float16) are not supported.  Raises ModelError if the mask is of another model or selects from frozen weights, and MaskError if it
    selects nothing or if a state of another mask is loaded.
    """
    require_mask(mask, named_weights(model))
    selected = {name: indices for name, indices in mask.indices.items() if len(indices)}
    if not selected:
        raise MaskError("the mask selects nothing, so there is nothing to train")
    weights = {name: weight for name, weight in named_weights(model).items() if name in selected}
    for name, weight in weights.items():
        if not weight.requires_grad or weight.is_inference():
            why = "was made in inference mode" if weight.is_inference() else "is frozen"
            hint = "load the model outside of it" if weight.is_inference() else "requires_grad_(True) thaws it"
            raise ModelError(f"the mask selects from {name}, which {why}: {hint}")
    if not callable(make):
        raise ParamsError(f"make: should be a class such as torch.optim.AdamW, not {make!r}")
    leaves = MaskedParameters(weights, GraftMask(mask.region, selected))
    try:
        optimizer = make([leaf.requires_grad_() for leaf in leaves.values.values()], **options)
    except (TypeError, ValueError) as error:
        raise ParamsError(f"make: no optimizer of these options: {one_line(error)}") from error
    if not isinstance(optimizer, Optimizer):
        raise ParamsError(f"make: should make an optimizer of torch, not a {type(optimizer).__name__}")
    _bind(optimizer, leaves, _digest(selected))
    return optimizer


def _bind(optimizer: Optimizer, leaves: MaskedParameters, digest: str) -> None:
    """Let the optimizer's steps be steps of the model's weights."""

    def before(_: Optimizer, args: tuple, options: dict) -> tuple[tuple, dict]:
        leaves.take_values()  # which may have been loaded, moved or turned since
        leaves.take_gradients()
        wrapped = {key: _closure(leaves, value) if callable(value) else value for key, value in options.items()}
        return (args[0], *(_closure(leaves, value) if callable(value) else value for value in args[1:])), wrapped

    def clear(set_to_none: bool = True) -> None:
        leaves.clear(set_to_none)

    def require_own(_: Optimizer, state: dict) -> None:
        if state.get(KEY) != digest:
            raise MaskError("state_dict: is of another mask than this optimizer's, or of none")

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: leaves.write_back())
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, KEY: digest})
    optimizer.register_load_state_dict_pre_hook(require_own)
    optimizer.zero_grad = clear


def _closure(leaves: MaskedParameters, closure: Callable[[], Any]) -> Callable[[], Any]:
    """The caller's closure at the weights that the optimizer is at, with the gradients that it leaves there."""

    def evaluate() -> Any:  # noqa: ANN401 - the caller's loss
        leaves.write_back()
        loss = closure()
        leaves.take_gradients()
        return loss

    return evaluate


def _digest(indices: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, at in sorted(indices.items()):
        digest.update(f"{name}[{len(at)}]".encode())
        digest.update(at.contiguous().numpy())
    return digest.hexdigest()
