"""Learned masks as refinement: from the order of any localizer to the mask that the loss asks for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from stages.lib.graft.mask import GraftMask
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.learned import LearnedMask, MaskLearning, MaskLogits, learn_mask
from stages.lib.localizers.movement import movement_mask

SETTINGS = ("steps", "learning_rate", "rate_kind", "offset", "rule", "eval_steps")


def refine_by_learning(evidence: Evidence, settings: Any, order: Tensor, k: int) -> GraftMask:
    """The learned mask of k parameters (at most k with rule "threshold"), whose base is the head of `order`.

    The last step is kept, whatever `settings.eval_steps` is: a localizer does not see dev.
    """
    return learn_from_order(evidence, order, k, settings.base_share, learning(settings)).mask


def refine_by_stitching(evidence: Evidence, settings: Any, order: Tensor, k: int) -> GraftMask:
    """The mask of Localize-and-Stitch (He et al., 2025): learning from the whole top k, with an l1 penalty.

    The logits start at +-`settings.stitch_offset` and the loss has the additional term
    `settings.stitch_l1` * sum of sigmoid(T).
    """
    how = replace(learning(settings), offset=settings.stitch_offset, l1=settings.stitch_l1)
    return learn_from_order(evidence, order, k, 1.0, how).mask


def learn_from_order(
    evidence: Evidence,
    order: Tensor,
    k: int,
    base_share: float,
    settings: MaskLearning,
    dev_score: Callable[[], tuple[float, float]] | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> LearnedMask:
    """Learn a mask of k parameters from the base of the first int(base_share * k) of `order` (see learn_mask)."""
    base = movement_mask(evidence.region, order, int(base_share * k))
    start = MaskLogits.around(base, evidence.pretrained, evidence.finetuned, settings.offset)
    return learn_mask(evidence.weights, start, k, settings, evidence.loss_gradient, dev_score, on_step)


def learning(settings: Any) -> MaskLearning:
    """The settings of mask learning, from a section that has them among others."""
    return MaskLearning(**{name: getattr(settings, name) for name in SETTINGS})
