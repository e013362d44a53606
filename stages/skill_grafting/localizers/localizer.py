"""What a localizer is: what it gets, the size that is asked for, and the mask that it gives.

It gets a LocalizerInput: two models, gradients of the training loss, and a seeded generator.  A localizer *ranks* the parameters of
the region, best first; the mask of k parameters is the first k of its ranking, so masks are nested.  One that looks for the best
set of a given size *refines*: its masks start from the ranking, if it has one, and need not be nested.
"""

import copy
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..grafting.apply import put_all
from ..grafting.mask import GraftMask
from ..grafting.region import Region, Tensors
from ..grafting.select import Converted
from ..support.errors import MaskError, ParamsError
from ..support.fields import Section
from ..support.progress import watched

LOGGER = logging.getLogger("skill_grafting")
# gets region indices, which rise, and the bits of the pretrained and the fine-tuned values there, which were read anyway
Keep = Callable[[Tensor, Tensor, Tensor], object] | None


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
    `scores()` by their names, where a localizer may choose by dev (it maximises their sum), and `loss()`, the mean over the training
    set, are of the model with the weights as they are, without gradients; None where they aren't to be had.
    """

    weights: Tensors
    batch_gradients: Callable[[int], Callable[[], Tensor]]
    full_gradient: Callable[[], Tensor]
    squared_gradients: Callable[..., Tensors]
    scores: Callable[[], Mapping[str, float]] | None = None
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

    `generator` is seeded by (purpose, task, seed); every random draw comes from it.  `on_step()` moves the bar of a search whose
    steps are known (`Localizer.steps_for`).  `keep` takes the values of a mask from whoever has them, so that they needn't be read again.
    """

    region: Region
    pretrained: Tensors
    finetuned: Tensors
    generator: np.random.Generator
    on_step: Callable[[], object] = lambda: None
    keep: Keep = None

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
    return torch.zeros(weight.shape, dtype=kind.to_real(), device=weight.device)


def add_squared_gradient(loss: Tensor, weights: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> None:
    """Add |gradient|^2 of each parameter for a scalar to its total, in place; the graph is kept."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(loss, [*weights.values()], **options)
    for name, gradient in zip(weights, gradients, strict=True):
        gradient = gradient if gradient.layout == torch.strided else gradient.to_dense()
        for part in torch.view_as_real(gradient).unbind(-1) if gradient.is_complex() else [gradient]:
            part = part.to(totals[name].dtype)
            totals[name].addcmul_(part, part)


@dataclass(frozen=True)
class Budget:
    """Size of a mask: k parameters, the `share` of the region that was asked for, rounded down."""

    k: int
    share: float | None = None

    @classmethod
    def of(cls, region: Region, sparsity: float, setting: str) -> "Budget":
        """That share of a region; raises an error that names `setting` if it is no share of parameters, or less than one of them."""
        if not isinstance(sparsity, Real) or isinstance(sparsity, bool) or not 0 < sparsity <= 1:
            raise ParamsError(f"{setting}: {sparsity!r} is no share of parameters, above 0 and at most 1")
        k, size = region.budget(sparsity), region.size
        if k == 0:
            digits = 2 + math.floor(math.log10(size))
            least = f"less than one; the smallest is {math.ceil(10**digits / size) / 10**digits:.2g}"
            raise MaskError(f"{setting}: {sparsity} of {size:,} graftable parameters is {least}")
        return cls(k, sparsity)


class Localizer(Section):
    """One way to find the parameters that carry a skill, with its settings; it has a rank, or a refine, or both.

    `name` is that of its class in lower case, or the one it was registered by; `needs_model`: a model and data, and not just two sets
    of weights; None where they are taken if they are given.  `of_examples`: it squares gradients of single examples.
    `refuses_infinite`: it finds out itself if a parameter moved infinitely far.
    """

    name: ClassVar[str]
    needs_model: ClassVar[bool | None] = False
    of_examples: ClassVar[bool] = False
    refuses_infinite: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    def rank(self, given: LocalizerInput, k: int) -> Tensor | None:
        """Region indices (int64), best first, exactly min(k, the number it has an opinion about) of them; None if it has no ranking."""

    def refine(self, given: LocalizerInput, order: Tensor | None, budget: Budget) -> GraftMask:
        """The mask of that size, from a ranking that is at least as long: its first k."""
        return GraftMask.from_region_indices(given.region, order[: budget.k])

    def steps_for(self, masks: int) -> int:
        """How many steps, each told of by `given.on_step()`, so many masks take; 0 if that isn't known."""
        return 0

    def find(self, make_input: Callable[[], LocalizerInput], budgets: Sequence[Budget]) -> list[GraftMask]:
        """The mask of each budget, as if it were the only one, from one ranking; `make_input()` gives equal input each time.

        Raises TrainingError if a loss diverges.
        """
        order = self.rank(make_input(), max(budget.k for budget in budgets)) if budgets else None
        return [self.refine(make_input(), order, budget) for budget in budgets]


def find_masks(
    localizer: Localizer,
    objective: Objective,
    region: Region,
    ends: tuple[Tensors, Tensors],
    budgets: Sequence[Budget],
    seed: int | np.random.Generator = 0,
    title: str = "",
    keep: Keep = None,
) -> list[GraftMask]:
    """The mask of each budget between the `ends` of a region, pretrained and fine-tuned; equal seeds give equal masks.

    A bar of this title, if there is one, counts steps, or else forward passes, or tensors.  `mask.record` says how a mask was found.
    """
    generator, weights, read = np.random.default_rng(seed), objective.weights, set[str]()
    steps = localizer.steps_for(len(budgets)) if weights else len(region.shapes)
    unit = ("step" if steps else "pass") if weights else "tensor"
    with watched(title, steps, unit, None if steps else objective.module) as moved, torch.inference_mode(False):

        def value(name: str, values: Tensor) -> Tensor:
            values = values.detach().as_subclass(Tensor)
            if not weights and name not in read:
                read.add(name)
                moved()
            return values.to(weights[name]) if name in weights else values

        before, after = (Converted(side, value, region.shapes) for side in ends)

        def make_input() -> LocalizerInput:
            given = objective.between(region, before, after, copy.deepcopy(generator))
            return replace(given, on_step=moved, keep=keep)

        masks = localizer.find(make_input, budgets)
    how = {"method": localizer.name, "settings": localizer.model_dump()}
    masks = [replace(mask, record={**how, **mask.record}) for mask in masks]
    LOGGER.info("%s: %s", localizer.name, masks)
    return masks
