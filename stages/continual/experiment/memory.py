"""Three kinds of memory of earlier tasks: pieces of a graft, stored examples, and a penalty.

Pieces (paper, section 5.2 and appendix C.3): with gamma_n the region of the n-th task, training for it
moves  gamma_n without the union of gamma_i, i < n  alone, and the model for task n is the graft of the
union of gamma_i, i <= n.  So what later tasks train is never part of an earlier task's model: nothing
is forgotten, whatever the data are.

Experience replay (Chaudhry et al. 2019): a few rows of every earlier task are stored, and each batch of a new one has
as many of them on top as it has rows of its own.

Elastic weight consolidation (Kirkpatrick et al. 2017): each task that was learned adds
strength / 2 * sum over i of F_i (theta_i - theta*_i)^2  to the loss of all later ones, with F the
diagonal of the Fisher information of its data at the weights theta* that it ended with.  A sum of such
penalties is one penalty again, up to a constant: with the sum of all F and the mean of all theta*
weighted by F.  These two tensors are all that is kept, for any number of tasks.  The penalty takes a proximal step
after each of the task's own: the same as a step along its gradient to first order in the rate, and it cannot overshoot
where the penalty is steeper than 2 / rate, at which plain steps diverge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from skill_grafting.grafting.apply import transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Tensors, grouped


@dataclass(frozen=True)
class Piece:
    """The part of one task: the parameters that are its own, their trained values, and its head if it has one."""

    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]


def remainder(mask: GraftMask, earlier: Sequence[GraftMask]) -> GraftMask:
    """The part of a mask that no earlier one selects.  Raises ValueError if they are of different regions."""
    if any(other.region != mask.region for other in earlier):
        raise ValueError("masks of different regions have nothing in common")
    mine = mask.region_indices()
    for other in earlier:
        mine = mine[~torch.isin(mine, other.region_indices(), assume_unique=True)]
    return GraftMask.from_region_indices(mask.region, mine)


def put_together(pretrained: Tensors, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """The region's tensors with every piece in them: the graft of their union.  The inputs are not changed."""
    region = {name: values.detach() for name, values in pretrained.items()}
    for piece in pieces:
        region = transplant(region, piece.values, piece.mask)
    return region


Row = dict[str, str | None]


def stored_rows(rows: Sequence[Row], labels: Sequence[str], per_class: int) -> list[Row]:
    """The first rows of every class, in their order, all of a class that has fewer.

    The rows of a class come in a random order already (data/sampling.py), so these are a random draw.
    """
    chosen = []
    for label in labels:
        chosen += islice((number for number, row in enumerate(rows) if row["label"] == label), per_class)
    return [rows[number] for number in sorted(chosen)]


class Elastic:
    """The penalties of all tasks learned so far: `importance` and `centre`, by name, in the weights' shapes."""

    def __init__(self) -> None:
        self.importance: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, fisher: Tensors, weights: Tensors) -> None:
        """Add a task: its Fisher information (not negative) and the weights it ended with; both are copied."""
        for name, added in fisher.items():
            if name not in self.importance:
                self.importance[name] = added.detach().clone()
                self.centre[name] = weights[name].detach().clone()
                continue
            self.importance[name] += added
            share = added / self.importance[name].clamp(min=torch.finfo(added.dtype).tiny)
            self.centre[name] += share * (weights[name].detach() - self.centre[name])

    @torch.no_grad()
    def pull(self, leaves: Mapping[str, Tensor], stiffness: float) -> None:
        """Move each leaf to the minimum of  (theta - leaf)^2 / 2 + stiffness / 2 * F (theta - centre)^2.

        That is the mean of leaf and centre, weighted 1 : stiffness * F, so nothing is carried past its centre.  It is the proximal
        step of the penalty where `stiffness` is learning rate times strength.
        """
        held = {name: leaf for name, leaf in leaves.items() if name in self.importance}
        for names in grouped(held):
            share = torch._foreach_mul([self.importance[name] for name in names], stiffness)
            torch._foreach_div_(share, torch._foreach_add(share, 1.0))
            torch._foreach_lerp_([held[name] for name in names], [self.centre[name] for name in names], share)

    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [*self.importance.values(), *self.centre.values()]
