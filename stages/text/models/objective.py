"""The loss on a task's rows, as localizers take its gradients."""

from collections.abc import Callable, Iterable
from itertools import repeat

import numpy as np
import torch

from skill_grafting.localizers.localizer import Objective
from stages.text.models.batching import shuffled
from stages.text.models.encoding import Example
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import accuracy_and_loss, loss_gradient, own_score
from stages.text.tasks.runtime import numpy_generator, permuted


def objective_of(
    model: LabelModel,
    names: Iterable[str],
    train_rows: list[dict],
    dev_rows: list[dict] | None = None,
    words: tuple[object, ...] = (),
) -> Objective:
    """The loss on training rows by the parameters of these names; with `dev_rows` localizers may choose by train plus dev.

    Equal `words` give equal batches and draws.
    """
    weights = model.train_only({*names})
    train = model.encode(train_rows)
    drawn = permuted(train, "fisher", *words)
    sets = None if dev_rows is None else {"train_score": train, "dev_score": model.encode(dev_rows)}
    return Objective(
        weights,
        lambda size: _batch_gradients(model, train, size, numpy_generator(*words)),
        lambda: loss_gradient(model, train),
        lambda n, *how: squared_gradients(model, drawn[:n], [*weights], *how),
        sets and (lambda: {name: own_score(model, examples) for name, examples in sets.items()}),
        len(train),
        lambda: accuracy_and_loss(model, train)[1],
        model.model,
    )


def draws(*words: object) -> np.random.Generator:
    """The generator of a localizer's own draws, apart from the one that shuffles the training batches."""
    return numpy_generator("draws", *words)


def _batch_gradients(
    model: LabelModel, train: list[Example], batch_size: int, generator: np.random.Generator
) -> Callable[[], torch.Tensor]:
    batches = repeat(range(len(train)))
    if len(train) > batch_size:
        batches = shuffled(train, batch_size, generator, bucket_batches=1)

    return lambda: loss_gradient(model, [train[index] for index in next(batches)])
