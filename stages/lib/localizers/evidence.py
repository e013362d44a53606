"""What a localizer may look at: two models, the training loss between them, and a seeded generator."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stages.lib.graft.region import Region, Tensors


@dataclass(frozen=True)
class Evidence:
    """Everything a localizer is given; it computes a ranking or a mask from nothing else.

    pretrained, finetuned: the region's values, never changed.  `weights` are the live parameters of
    the model, already pretrained outside the region but for a trained head: a localizer overwrites
    them as it likes and leaves them in any state.

    `loss_gradient()` takes the next training batch and `full_gradient()` the whole training set: both
    give the mean loss with the weights as they are and leave dLoss/dweight in each weight's `.grad`.
    `squared_gradients(n, mode, draws, generator)` gives, for the first n training examples in a fixed
    random order (all if there are fewer), the sum over examples of the squared gradient of each one's
    own loss with the weights as they are; the loss of the true label unless a mode of
    models/fisher.py says otherwise.
    `generator` is seeded by (purpose, task, seed); every random draw comes from it.
    """

    region: Region
    pretrained: Tensors
    finetuned: Tensors
    weights: Tensors
    loss_gradient: Callable[[], float]
    full_gradient: Callable[[], float]
    squared_gradients: Callable[..., Tensors]
    generator: np.random.Generator

    def put(self, tensors: Tensors) -> None:
        """Overwrite the weights with these values."""
        for name, weight in self.weights.items():
            weight.data.copy_(tensors[name])
