"""Mask learning on a real model: what localize/learned.py needs, provided by a LabelModel."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.lib.errors import MaskError, TrainingError
from stages.lib.graft.apply import values_at
from stages.lib.graft.mask_file import StoredMask, require_model
from stages.lib.graft.order_file import read_order
from stages.lib.localize.learned import LearnedMask, MaskLearning, MaskLogits, learn_mask
from stages.lib.localize.movement import movement_mask
from stages.lib.model.anatomy import Anatomy
from stages.lib.model.groups import HEAD
from stages.lib.model.label_model import LabelModel
from stages.lib.model.objective import loss_gradient
from stages.lib.model.predicting import dev_score
from stages.lib.model.reset import reset_to_pretrained
from stages.lib.runtime import numpy_generator
from stages.lib.text.batching import shuffled
from stages.lib.text.encoding import Example


@dataclass(frozen=True)
class Learned:
    """A learned mask with the fine-tuned values it selects, the trained head, and what its base came from."""

    result: LearnedMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]
    origin: dict[str, Any]


def learn(
    model: LabelModel,
    anatomy: Anatomy,
    pretrained_folder: Path,
    order_file: Path,
    rows: dict[str, list[dict]],
    settings: Any,
    cell: tuple[str, int],
    on_step: Callable[[], object] = lambda: None,
) -> Learned:
    """Learn the mask of a fine-tuned `model` by the `graft` section, from the stored movement order.

    Outside the region everything but a new head goes back to its pretrained value first, so that the
    mask is learned for the graft as it will be used.  Raises TrainingError if the loss diverges, MaskError if the order is
    another model's.
    """
    region = anatomy.region(settings.region)
    order, origin = read_order(order_file)
    budget = _budget(region, settings.sparsity, order)
    weights = model.train_only({*region.shapes})
    finetuned = {name: weight.detach().clone() for name, weight in weights.items()}
    head = {name: model.parameters()[name].detach().cpu().clone() for name in anatomy.names([HEAD])}
    pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, region.shapes)
    require_model(order_file, origin, region, region.fingerprint(_on_cpu(pretrained)), anatomy.name)
    base = movement_mask(region, order, int(settings.base_share * budget))
    logits = MaskLogits.around(base, pretrained, finetuned, settings.offset)
    train, dev = model.encode(rows["train"]), model.encode(rows["dev"])
    gradient = _gradient(model, train, settings.batch_size, cell)
    try:
        result = learn_mask(
            weights, logits, budget, _learning(settings), gradient, lambda: dev_score(model, dev), on_step
        )
    except FloatingPointError as error:
        raise TrainingError(f"{error}; lower graft.learning_rate ({settings.learning_rate})") from error
    values = {name: part.cpu() for name, part in values_at(_on_cpu(finetuned), result.mask).items()}
    return Learned(result, values, head, origin)


def stored(learned: Learned, settings: Any, about: dict[str, Any]) -> StoredMask:
    """The mask file's content, with how the mask was made in its header."""
    how = {
        "localizer": "learned",
        "rule": settings.rule,
        "step": learned.result.step,
        "history": learned.result.history,
    }
    return StoredMask(learned.result.mask, learned.values, learned.head, {**learned.origin, **about, **how})


def _budget(region: Any, sparsity: float, order: Tensor) -> int:
    budget = region.budget(sparsity)
    if budget == 0:
        raise MaskError(
            f"graft.sparsity: {sparsity} of {region.size:,} graftable parameters is less than one; the smallest is {1 / region.size:.2g}"
        )
    if budget > len(order):
        raise MaskError(
            f"graft.sparsity: {sparsity} is more than the stored order holds; raise movement.keep and run `dvc repro`"
        )
    return budget


def _gradient(model: LabelModel, train: list[Example], batch_size: int, cell: tuple[str, int]) -> Callable[[], float]:
    if len(train) <= batch_size:
        return lambda: loss_gradient(model, train)
    batches = shuffled(train, batch_size, numpy_generator("mask", *cell), bucket_batches=1)
    return lambda: loss_gradient(model, [train[index] for index in next(batches)])


def _learning(settings: Any) -> MaskLearning:
    return MaskLearning(**{name: getattr(settings, name) for name in MaskLearning.__dataclass_fields__})


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
