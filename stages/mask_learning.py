"""Mask learning on a real model: what lib/localizers/learned.py needs, provided by a LabelModel."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.lib.errors import MaskError, TrainingError
from stages.lib.graft.apply import values_at
from stages.lib.graft.mask_file import StoredMask, require_model
from stages.lib.graft.order_file import read_order
from stages.lib.graft.region import Tensors
from stages.lib.localizers.learned import LearnedMask
from stages.lib.localizers.refined import learn_from_order, learning
from stages.lib.models.anatomy import HEAD, Anatomy
from stages.lib.models.evidence import gather
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score


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
    head = {name: model.parameters()[name].detach().cpu().clone() for name in anatomy.names([HEAD])}
    evidence = gather(model, anatomy, pretrained_folder, region, rows["train"], settings, ("mask", *cell))
    require_model(order_file, origin, region, region.fingerprint(_on_cpu(evidence.pretrained)), anatomy.name)
    dev = model.encode(rows["dev"]) if settings.eval_steps else []
    try:
        result = learn_from_order(
            evidence,
            order,
            budget,
            settings.base_share,
            learning(settings),
            lambda: dev_score(model, dev),
            on_step,
        )
    except FloatingPointError as error:
        raise TrainingError(f"{error}; lower graft.learning_rate ({settings.learning_rate})") from error
    values = {name: part.cpu() for name, part in values_at(_on_cpu(evidence.finetuned), result.mask).items()}
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


def _on_cpu(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
