"""What a localizer may look at, gathered from a real model, or from two sets of weights alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from stages.lib.graft.region import Region, Tensors
from stages.lib.localizers.evidence import Evidence
from stages.lib.models.anatomy import Anatomy
from stages.lib.models.fisher import squared_gradients
from stages.lib.models.label_model import LabelModel, reset_to_pretrained
from stages.lib.models.predicting import loss_gradient
from stages.lib.runtime import numpy_generator
from stages.lib.text.batching import shuffled
from stages.lib.text.encoding import Example


def gather(
    model: LabelModel,
    anatomy: Anatomy,
    pretrained_folder: Path,
    region: Region,
    train_rows: list[dict],
    settings: Any,
    purpose_words: tuple[object, ...],
) -> Evidence:
    """Evidence about a fine-tuned `model`, whose weights localizers may change from here on.

    Outside the region everything but a new head goes back to its pretrained value first, so that
    masks are found for the graft as it will be used.  `settings.batch_size` is that of the training
    batches, which are the whole set if it isn't larger.  Equal `purpose_words` give equal batches
    and draws.
    """
    finetuned = {name: model.parameters()[name].detach().clone() for name in region.shapes}
    pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, region.shapes)
    return evidence_about(model, region, pretrained, finetuned, train_rows, settings, purpose_words)


def evidence_about(
    model: LabelModel,
    region: Region,
    pretrained: Tensors,
    finetuned: Tensors,
    train_rows: list[dict],
    settings: Any,
    purpose_words: tuple[object, ...],
) -> Evidence:
    """Evidence about a model that is reset already (see gather), with both sets of the region's values."""
    weights = model.train_only({*region.shapes})
    train = model.encode(train_rows)
    order = numpy_generator("fisher", *purpose_words).permutation(len(train))
    return Evidence(
        region,
        pretrained,
        finetuned,
        weights,
        _minibatch_gradient(model, train, settings.batch_size, numpy_generator(*purpose_words)),
        lambda: loss_gradient(model, train),
        lambda n, *how: squared_gradients(model, [train[index] for index in order[:n]], region.shapes, *how),
        draws(*purpose_words),
    )


def from_tensors(region: Region, pretrained: Tensors, finetuned: Tensors, generator: np.random.Generator) -> Evidence:
    """Evidence for localizers that need no model; asking it for weights or gradients raises RuntimeError."""
    return Evidence(region, pretrained, finetuned, _NoWeights(), _no_model, _no_model, _no_model, generator)


def draws(*purpose_words: object) -> np.random.Generator:
    """The generator of a localizer's own draws, apart from the one that shuffles the training batches."""
    return numpy_generator("draws", *purpose_words)


def _minibatch_gradient(
    model: LabelModel, train: list[Example], batch_size: int, generator: np.random.Generator
) -> Callable[[], float]:
    if len(train) <= batch_size:
        return lambda: loss_gradient(model, train)
    batches = shuffled(train, batch_size, generator, bucket_batches=1)
    return lambda: loss_gradient(model, [train[index] for index in next(batches)])


def _no_model(*_: object) -> NoReturn:
    raise RuntimeError("this evidence has no model to take gradients of; use `gather`, which looks at a real one")


class _NoWeights(Mapping):
    """The weights of no model, which can't even be looked for."""

    __getitem__ = __iter__ = __len__ = _no_model
