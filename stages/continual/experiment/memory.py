"""Three kinds of memory of earlier tasks: pieces of a graft, stored examples, and a penalty.

Pieces (paper, section 5.2 and appendix C.3): with gamma_n the region of the n-th task, training for it
moves  gamma_n without the union of gamma_i, i < n  alone, and the model for task n is the graft of the
union of gamma_i, i <= n.  So what later tasks train is never part of an earlier task's model: nothing
is forgotten, whatever the data are.

Experience replay: a few examples of every earlier task come again among those of a new one.

Elastic weight consolidation (Kirkpatrick et al. 2017): each task that was learned adds
strength / 2 * sum over i of F_i (theta_i - theta*_i)^2  to the loss of all later ones, with F the
diagonal of the Fisher information of its data at the weights theta* that it ended with.  A sum of such
penalties is one penalty again, up to a constant: with the sum of all F and the mean of all theta*
weighted by F.  These two tensors are all that is kept, for any number of tasks.  Its gradient is added once that of the
task's own loss is clipped: a few large penalties would else leave nothing of the loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from stages.lib.grafting.apply import transplant
from stages.lib.grafting.mask import GraftMask
from stages.lib.grafting.region import Tensors, grouped


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


Batch = TypeVar("Batch")
Row = dict[str, str | None]


def stored_rows(rows: Sequence[Row], labels: Sequence[str], per_class: int) -> list[Row]:
    """The first rows of every class, in their order, all of a class that has fewer.

    The rows of a class come in a random order already (data/sampling.py), so these are a random draw.
    """
    chosen = []
    for label in labels:
        chosen += islice((number for number, row in enumerate(rows) if row["label"] == label), per_class)
    return [rows[number] for number in sorted(chosen)]


def mixed(new: Iterator[Batch], stored: Sequence[Iterator[Batch]], every: int) -> Iterator[Batch]:
    """The new task's batches, with a batch of stored examples after `every` of them, from the earlier tasks in turn.

    The new task's batches come in their own order and none is left out.
    """
    turn = 0
    while True:
        yield from islice(new, every)
        if stored:
            yield next(stored[turn % len(stored)])
            turn += 1


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
    def pull(self, leaves: Mapping[str, Tensor], strength: float, most: float) -> None:
        """Add the penalty's gradient, strength * F * (theta - centre), to those of these leaves.

        strength * F is cut off at `most`.  With 1 / learning rate a step of gradient descent carries no
        weight past its centre; where the penalty is steeper than that, plain steps would overshoot,
        further each time.
        """
        held = {name: leaf for name, leaf in leaves.items() if name in self.importance and leaf.grad is not None}
        for names in grouped(held):
            stiffness = torch._foreach_mul([self.importance[name] for name in names], strength)
            torch._foreach_clamp_max_(stiffness, most)
            away = torch._foreach_sub([held[name] for name in names], [self.centre[name] for name in names])
            torch._foreach_addcmul_([held[name].grad for name in names], stiffness, away)

    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [*self.importance.values(), *self.centre.values()]
