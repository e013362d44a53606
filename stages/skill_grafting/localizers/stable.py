"""Stability selection: parameters chosen by most random halves of the training set (complementary pairs: Shah and Samworth, 2013)."""

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.apply import put_at, take_at, values_at
from ..grafting.select import top_k
from ..settings import Positive
from .evidence import LocalizerInput
from .movement import rank_by_movement
from .registry import Budget, FoundMask, Localizer, LocalizerSettings


class Stable(LocalizerSettings):
    """The draws of examples."""

    draws: int = Field(10, ge=1, le=1000, description="gradients, each of other training examples")
    batch_size: Positive = Field(
        64, description="examples of a draw; half of the training set gives complementary pairs"
    )
    path_point: float = Field(
        0.1, ge=0, le=1, description="where between pretrained (0) and fine-tuned (1) gradients are taken"
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return self.draws * min(self.batch_size, rows)


def select_stable(evidence: LocalizerInput, settings: Stable, _order: Tensor | None, budget: Budget) -> FoundMask:
    """The budget.k parameters that are most often among the k of largest first-order gain; the mean gain decides between equals.

    Each of `settings.draws` draws takes the gradient of `settings.batch_size` examples, another part of the training set
    each time, with the weights `settings.path_point` of the way to the fine-tuned model.  Entries of the mask file:
    `stable`, how many of the k are chosen by more than half of the draws.
    """
    next_gradient = evidence.batch_gradients(settings.batch_size)
    evidence.put_between(settings.path_point)
    votes = {name: torch.zeros_like(values) for name, values in evidence.pretrained.items()}
    gains = {name: torch.zeros_like(values) for name, values in evidence.pretrained.items()}
    for _ in range(settings.draws):
        next_gradient()
        drawn = {
            name: (evidence.pretrained[name] - evidence.finetuned[name]) * weight.grad
            for name, weight in evidence.weights.items()
        }
        for name, indices in top_k(evidence.region, drawn, budget.k).indices.items():
            put_at(votes[name], indices, take_at(votes[name], indices) + 1)
        for name, gain in drawn.items():
            gains[name] += gain
    mask = top_k(evidence.region, votes, budget.k, lambda name, at: take_at(gains[name], at))
    chosen = torch.cat([*values_at(votes, mask).values()])
    return FoundMask(mask, {"draws": settings.draws, "stable": int((chosen > settings.draws / 2).sum())})


LOCALIZER = Localizer(
    "gain most in most halves of the data",
    rank_by_movement,
    select_stable,
    refines_rank=False,
    settings=Stable,
    arrays=5,
)
