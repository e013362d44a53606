"""Elastic weight consolidation (Kirkpatrick et al. 2017): weights that mattered to earlier tasks are hard to move.

Each task that was learned adds  strength / 2 * sum over i of F_i (theta_i - theta*_i)^2  to the loss of
all later ones, with F the diagonal of the Fisher information of its data at the weights theta* that it
ended with.  A sum of such penalties is one penalty again, up to a constant: with the sum of all F
and the mean of all theta* weighted by F.  These two tensors are all that is kept, for any number of tasks.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from stages.lib.graft.region import Tensors


class Elastic:
    """The penalties of all tasks learned so far: `importance` and `centre`, by name, in the weights' shapes."""

    def __init__(self) -> None:
        self.importance: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, fisher: Tensors, weights: Tensors) -> None:
        """Take in a task: its Fisher information, 0 or more, and the weights it ended with; both are copied."""
        for name, added in fisher.items():
            if name not in self.importance:
                self.importance[name] = added.detach().clone()
                self.centre[name] = weights[name].detach().clone()
                continue
            self.importance[name] += added
            share = added / self.importance[name].clamp(min=torch.finfo(added.dtype).tiny)
            self.centre[name] += share * (weights[name].detach() - self.centre[name])

    @torch.no_grad()
    def pull(self, leaves: Mapping[str, Tensor], strength: float, most: float) -> None:
        """Add the penalty's gradient, strength * F * (theta - centre), to those of these leaves.

        strength * F is cut off at `most`.  With 1 / learning rate a step of gradient descent carries no
        weight past its centre; where the penalty is steeper than that, plain steps would overshoot,
        further each time.
        """
        for name, leaf in leaves.items():
            if name in self.importance and leaf.grad is not None:
                stiffness = (strength * self.importance[name]).clamp_(max=most)
                leaf.grad.addcmul_(stiffness, leaf - self.centre[name])

    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [*self.importance.values(), *self.centre.values()]
