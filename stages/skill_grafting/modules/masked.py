"""Training the entries of a mask alone: parameters as an optimizer sees them, and any torch optimizer on them."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..grafting.apply import take_at, write
from ..grafting.mask import GraftMask, require_mask
from ..grafting.region import named_weights, unwrapped
from ..support.errors import MaskError, ModelError, ParamsError, a_kind, one_line
from .targets import require_whole, writable

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

    def write_back(self) -> None:
        """Write every gathered leaf back into its weight."""
        write((self._weights[name], indices, self.values[name].detach()) for name, indices in self._at.items())

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

    Nothing else can move, not even by weight decay, and the optimizer's state is as large as the mask.  It is used as any other: in
    your own loop, with schedulers, closures, `clip_grad_norm_` and GradScaler, or as `optimizers=(this, None)` of transformers' Trainer.
    Its groups have the weights that the mask selects from, with their whole gradients, so that clipping through them is clipping those.
    `requires_grad_(False)` spares the gradients of all others.  Raises ModelError if the mask is of another model, or selects from
    weights that are frozen, sharded or without values, and MaskError if it selects nothing or if a state of another mask is loaded.
    """
    require_whole(model)
    require_mask(mask, named_weights(model))
    selected = {name: indices for name, indices in mask.indices.items() if len(indices)}
    if not selected:
        raise MaskError("the mask selects nothing, so there is nothing to train")
    known = writable(model, selected)
    weights = {name: known[name] for name in known if name in selected}
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
        raise ParamsError(f"make: should make an optimizer of torch, not {a_kind(optimizer)}")
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (OfMask, kind), {"__module__": kind.__module__})
    optimizer.show(model, leaves, weights, _digest(selected))
    return optimizer


class OfMask(Optimizer):
    """What an optimizer of any kind does otherwise if it steps the entries of a mask.

    It steps leaves and keeps a state of these alone.  Everybody else sees the weights that they are of in its groups, so that whoever
    clips, scales or clears gradients by the groups does it to those that `backward` leaves and the next step takes.
    """

    def show(self, model: nn.Module, leaves: MaskedParameters, weights: dict[str, Tensor], digest: str) -> None:
        """Show these weights of a model in the groups in place of their leaves."""
        self._model, self._leaves, self._weights, self._digest = model, leaves, weights, digest
        shown = {id(leaves.values[name]): weight for name, weight in weights.items()}
        self._stepped = [group["params"] for group in self.param_groups]
        self._shown = [[shown.get(id(leaf), leaf) for leaf in stepped] for stepped in self._stepped]
        self._put(self._shown)

    @Optimizer.profile_hook_step  # so that hooks, too, see the weights
    def step(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the caller's loss
        """Step the leaves, with a closure evaluated at the weights where the optimizer is."""
        self._require_weights()
        self._leaves.take_values()  # which may have been loaded, moved or turned since
        self._leaves.take_gradients()
        args, options = [*map(self._closure, args)], {key: self._closure(value) for key, value in options.items()}
        unhooked = super().step.__wrapped__
        with self._showing(self._stepped):
            loss = unhooked(self, *args, **options)
            self._leaves.write_back()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of the leaves, and whose mask's it is."""
        with self._showing(self._stepped):
            return {**super().state_dict(), KEY: self._digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the same mask; MaskError for another."""
        if state_dict.get(KEY) != self._digest:
            raise MaskError("state_dict: is of another mask than this optimizer's, or of none")
        self._leaves.take_values()  # the state comes to their device
        with self._showing(self._stepped):
            super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: nothing but the mask's entries can move."""
        raise ParamsError(
            f"add_param_group: {type(self).__name__} moves what the mask selects alone; make another one for more"
        )

    def __reduce_ex__(self, protocol: int) -> NoReturn:
        raise ModelError(
            "an optimizer of a mask can't be copied: make one of the copied model, and load this one's state_dict()"
        )

    def _closure(self, value: object) -> object:
        """The caller's closure at the weights that the optimizer is at, with the gradients that it leaves there; all else as it is."""
        if not callable(value):
            return value

        def evaluate() -> Any:  # noqa: ANN401 - the caller's loss
            self._leaves.write_back()
            with self._showing(self._shown):
                loss = value()
            self._leaves.take_gradients()
            return loss

        return evaluate

    def _require_weights(self) -> None:
        """Raise ModelError if the model has other weights now, as loading by `assign=True` or sharding gives it."""
        now = dict(unwrapped(self._model).named_parameters(remove_duplicate=False))
        for name, weight in self._weights.items():
            if now.get(name) is not weight:
                raise ModelError(
                    f"{name} was replaced since the optimizer was made, by loading or sharding: make the optimizer anew"
                )

    @contextmanager
    def _showing(self, parameters: list[list[Tensor]]) -> Iterator[None]:
        """The groups with these parameters inside `with`."""
        before = [group["params"] for group in self.param_groups]
        self._put(parameters)
        try:
            yield
        finally:
            self._put(before)  # into groups that may be others, since loading makes them anew

    def _put(self, parameters: list[list[Tensor]]) -> None:
        for group, these in zip(self.param_groups, parameters, strict=True):
            group["params"] = these


OfMask.step.hooked = True  # or torch would do so once more


def _digest(indices: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, at in sorted(indices.items()):
        digest.update(f"{name}[{len(at)}]".encode())
        digest.update(at.contiguous().numpy())
    return digest.hexdigest()
