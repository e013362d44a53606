"""The input of localizers, from a live model."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

import numpy as np
import torch

from ..data.batching import shuffled
from ..data.encoding import Example
from ..grafting.region import Region, Tensors
from ..localizers.evidence import LocalizerInput, Scores
from ..runtime import numpy_generator, permuted
from .fisher import squared_gradients
from .label_model import LabelModel
from .predicting import loss_gradient, own_score, predictions_of


def with_scores(
    evidence: LocalizerInput, model: LabelModel, train_rows: list[dict], dev_rows: list[dict]
) -> LocalizerInput:
    """The same evidence with scores on train and dev, for localizers that choose by them."""
    sets = [model.encode(rows) for rows in (train_rows, dev_rows)]
    return replace(evidence, scores=lambda: Scores(*(own_score(model, examples) for examples in sets)))


def evidence_about(
    model: LabelModel,
    region: Region,
    pretrained: Tensors,
    finetuned: Tensors,
    train_rows: list[dict],
    purpose_words: tuple[object, ...],
) -> LocalizerInput:
    """Evidence about a model with both sets of the region's values, everything else as a graft will have it.

    Equal `purpose_words` give equal batches and draws.
    """
    weights = model.train_only({*region.shapes})
    train = model.encode(train_rows)
    drawn = permuted(train, "fisher", *purpose_words)
    return LocalizerInput(
        region,
        pretrained,
        finetuned,
        weights,
        lambda size: _batch_gradients(model, train, size, numpy_generator(*purpose_words)),
        lambda: loss_gradient(model, train),
        lambda n, *how: squared_gradients(model, drawn[:n], region.shapes, *how),
        draws(*purpose_words),
        examples=len(train),
        loss=lambda: predictions_of(model, train)[1],
    )


def draws(*purpose_words: object) -> np.random.Generator:
    """The generator of a localizer's own draws, apart from the one that shuffles the training batches."""
    return numpy_generator("draws", *purpose_words)


def _batch_gradients(
    model: LabelModel, train: list[Example], batch_size: int, generator: np.random.Generator
) -> Callable[..., torch.Tensor]:
    batches = repeat(range(len(train)))
    if len(train) > batch_size:
        batches = shuffled(train, batch_size, generator, bucket_batches=1)

    def gradient(passed_over: bool = False) -> torch.Tensor:
        examples = [train[index] for index in next(batches)]
        return torch.tensor(math.nan) if passed_over else loss_gradient(model, examples)

    return gradient
