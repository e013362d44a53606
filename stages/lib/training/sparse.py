"""Parameters as the optimizer sees them: whole weights, or only the entries of them that a mask selects.

Zeroing the gradient outside a mask would not keep those entries still: weight decay, momentum and
Adam move them without one.  So the selected entries are gathered into leaves of their own, which
are all the optimizer knows: its state has as many entries as the mask, and nothing else can move.
"""

import torch
from torch import Tensor

from ..graft.mask import GraftMask


class Leaves:
    """`values`: name -> the tensor that the optimizer steps, in the order of the weights.

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
                self.values[name] = weight.detach().reshape(-1)[self._at[name]]
            elif name not in untouched:
                self.values[name] = weight
        if not self.values:
            raise ValueError("nothing to train: no weights, or a mask that selects none of them")

    def clear(self) -> None:
        """Forget all gradients of the weights."""
        for weight in self._weights.values():
            weight.grad = None

    def gradients(self) -> list[Tensor]:
        """Those that the weights have."""
        return [weight.grad for weight in self._weights.values() if weight.grad is not None]

    def clip(self, norm: float) -> None:
        """Shorten the gradient of all weights together to this norm, whatever the mask takes of it."""
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), norm)

    def take_gradients(self) -> None:
        """Give every gathered leaf its share of the gradient that its weight has."""
        for name, indices in self._at.items():
            gradient = self._weights[name].grad
            self.values[name].grad = None if gradient is None else gradient.reshape(-1)[indices]

    @torch.no_grad()
    def write_back(self) -> None:
        """Put every gathered leaf where it came from."""
        for name, indices in self._at.items():
            self._weights[name].view(-1)[indices] = self.values[name]

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
