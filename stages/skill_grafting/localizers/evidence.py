"""The input of localizers (their evidence): two models, gradients of the training loss, and a seeded generator."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..grafting.apply import put_all
from ..grafting.region import LazyTensors, Region, Tensors
from ..support.errors import ParamsError
from ..support.progress import watched

if TYPE_CHECKING:
    from ..grafting.mask import GraftMask
    from .registry import Budget, Localizer

LOGGER = logging.getLogger("skill_grafting")


class Scores(NamedTuple):
    """A model by the task's own metric, on the training rows and on dev; the paper's authors choose by the sum."""

    train_score: float
    dev_score: float


@dataclass(frozen=True)
class Objective:
    """The loss that localizers take gradients of, as functions of a live model.

    `weights` are its live parameters, the pretrained ones outside the region but for a trained head: a localizer overwrites them as it
    likes and leaves them in any state.  `examples`: how many training examples there are, 0 where that isn't known.
    `batch_gradients(n)` starts a stream of training batches of n examples (the whole set if it isn't larger), equal ones every time,
    and gives a function of the next batch; `full_gradient()` is of the whole training set.  Both give the mean loss with
    the weights as they are, not yet read from the device, and leave dLoss/dweight in each `.grad`.
    `squared_gradients(n, mode, draws, generator)` gives, for the first n training examples in a fixed random order (all if there are
    fewer), the sum over examples of the squared gradient of each one's own loss with the weights as they are; the loss of the true
    label unless a mode of models/fisher.py says otherwise.
    `scores()`, where a localizer may choose by dev (it maximises their sum), and `loss()`, the mean over the training set, are of the
    model with the weights as they are, without gradients; None where they aren't to be had.
    """

    weights: Tensors
    batch_gradients: Callable[[int], Callable[[], Tensor]]
    full_gradient: Callable[[], Tensor]
    squared_gradients: Callable[..., Tensors]
    scores: Callable[[], NamedTuple] | None = None
    examples: int = 0
    loss: Callable[[], float] | None = None
    module: nn.Module | None = None

    def between(
        self, region: Region, pretrained: Tensors, finetuned: Tensors, generator: np.random.Generator
    ) -> "LocalizerInput":
        """The input of a localizer that looks for the skill between these two ends."""
        ends = {"region": region, "pretrained": pretrained, "finetuned": finetuned}
        return LocalizerInput(**vars(self), **ends, generator=generator)


@dataclass(frozen=True, kw_only=True)
class LocalizerInput(Objective):
    """Everything a localizer may look at: beside the loss both ends of the region, whose values are never changed.

    `generator` is seeded by (purpose, task, seed); every random draw comes from it.
    """

    region: Region
    pretrained: Tensors
    finetuned: Tensors
    generator: np.random.Generator

    def put(self, tensors: Tensors) -> None:
        """Overwrite the weights with these values."""
        put_all({name: weight.data for name, weight in self.weights.items()}, tensors)


def _no_model(*_: object) -> NoReturn:
    raise ParamsError(
        "loss: this method takes gradients, and has no model to take gradients of; pass loss=, a function of the model"
    )


# for localizers that look at weights alone
NO_OBJECTIVE = Objective({}, _no_model, _no_model, _no_model)


def squares_of(weight: Tensor) -> Tensor:
    """Zeros for a parameter's squared gradients: real, and not of a type so narrow that they would be rounded away beside their sum."""
    kind = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros_like(weight, dtype=kind.to_real())


def add_squared_gradient(loss: Tensor, weights: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> None:
    """Add |gradient|^2 of each parameter for a scalar to its total, in place; the graph is kept."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(loss, [*weights.values()], **options)
    for name, gradient in zip(weights, gradients, strict=True):
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        for part in torch.view_as_real(gradient).unbind(-1) if gradient.is_complex() else [gradient]:
            part = part.to(totals[name].dtype)
            totals[name].addcmul_(part, part)


def find_masks(
    localizer: "Localizer",
    objective: Objective,
    region: Region,
    ends: tuple[Tensors, Tensors],
    budgets: "Sequence[Budget]",
    seed: int | np.random.Generator = 0,
    title: str = "",
) -> "list[GraftMask]":
    """The mask of each budget between the `ends` of a region, pretrained and fine-tuned; equal seeds give equal masks.

    A bar of this title, if there is one, counts forward passes, or tensors.  `mask.record` says how a mask was found.
    """
    generator, weights = np.random.default_rng(seed), objective.weights
    total = None if objective.module else len(region.shapes)
    with watched(title, objective.module, total, bool(title)) as seen, torch.inference_mode(False):

        def value(side: Tensors, name: str) -> Tensor:
            values = side[name].detach()
            if not weights:
                seen()
            return values.to(weights[name]) if name in weights else values

        before, after = (LazyTensors(region.shapes, lambda name, side=side: value(side, name)) for side in ends)
        masks = localizer.find(lambda: objective.between(region, before, after, copy.deepcopy(generator)), budgets)
    how = {"method": localizer.name, "settings": localizer.model_dump()}
    masks = [replace(mask, record={**how, **mask.record}) for mask in masks]
    LOGGER.info("%s: %s", localizer.name, masks)
    return masks
