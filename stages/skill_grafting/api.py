"""Skill grafting for any two torch modules of one architecture: `base`, and `tuned`, which was fine-tuned from it.

Parameters are named as in `named_parameters()`; tied parameters appear once.  A mistake of the caller raises a GraftError.
The overloads of `localize` and its options stand in __init__.pyi, where editors and type checkers look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from typing import Any, SupportsFloat

import numpy as np
from torch import Tensor, nn

from .finding import masks_between
from .grafting.mask import GraftMask
from .grafting.region import Parameters, Tensors
from .localizers.localizer import NO_OBJECTIVE, Budget, Localizer
from .localizers.registry import Rank, as_localizer, kind_of
from .losses import OwnLoss, require_list
from .modules.pairs import BaseOrPair, Pair
from .support.errors import ParamsError, require_takes

LOGGER = logging.getLogger("skill_grafting")
# what moved outside of the region is told where nobody chose the region and it is this share of all squared movement
TOLD = 0.01
# why a setting of a method changes nothing where the caller's own loss and batches are taken
BY_LOSS = "changes nothing here: the loss itself determines whose gradient is squared (see `fisher`)"
WITHOUT_ROWS = {
    "mode": BY_LOSS,
    "draws": BY_LOSS,
    "batch_size": "changes nothing here: a step takes one of `batches`, or the loss as it is",
}
WITHOUT_DEV = dict.fromkeys(
    ("select", "eval_steps"), "changes nothing without dev=, the score by which a step is chosen"
)


def localize(
    base: BaseOrPair,
    tuned: nn.Module | Tensors | None = None,
    *,
    sparsity: float | Iterable[float],
    method: str | Localizer | Rank = "movement",
    loss: Callable[..., Tensor] | None = None,
    batches: Iterable[Any] | None = None,
    dev: Callable[[Any], SupportsFloat] | None = None,
    parameters: Parameters = None,
    heads: Parameters = None,
    seed: int | np.random.Generator = 0,
    progress: bool | str = True,
    **settings: Any,
) -> GraftMask | dict[float, GraftMask]:
    """Find the mask of floor(sparsity * size) parameters; a list of sizes gives a mask of each: {0.001: mask, ...}.

        mask = sg.localize(base, tuned, sparsity=1e-4)
        mask = sg.localize(base, tuned, sparsity=1e-4, method="learned", loss=loss, batches=batches, steps=50)
        model = sg.graft(base, tuned, mask)

    base, tuned: two modules, or the values of a region of each by name.  The pair of two checkpoints (see `read_pair`) takes the place
    of both.  `method` is a name (see `methods`), and `settings` are the method's own, such as steps=50.

    The region, which is what may be selected, is all that moved except heads, tables of embeddings, output embeddings and poolers.
    `parameters` says otherwise, whether it moved or not: "all" but heads, groups such as "layers", names or glob patterns of parameters
    or modules, or a function of the name.  `heads` names heads beside the usual ones, in the same ways.

    Methods that look at more than weights need `loss(model)`, a scalar, or `loss(model, batch)` with a list of `batches`.  They see a
    copy of the base in eval mode, with the heads and buffers of `tuned`.  `fish` and `talos` square the gradient of each batch, so they
    need batches of one example.  `dev(model)` is a score to maximise: `learned` keeps the mask of its best step (the authors' rule),
    and without it that of the last step; settings that need dev, such as eval_steps, are refused without it.

    A mask holds `indices` (parameter -> flat indices of what is selected, int64), the `region` (names and shapes of what might have
    been), and a `record` of how it was found: method, settings, losses by step, and what moved outside of the region (`left_out`).
    Equal seeds give equal masks.  A mask is smaller than asked for if the method has no more to select (bias) or ends earlier (threshold).

    Raises ParamsError for arguments that can't be, ModelError for models that don't fit each other or a loss that doesn't fit them,
    MaskError for less than one parameter, and TrainingError if the loss diverges.  All of them are GraftErrors.
    """
    _refuse_misspelt(method, settings)
    pair = Pair.of(base, tuned, heads)
    localizer = as_localizer(method, settings)
    needs_loss = loss is not None if localizer.needs_model is None else localizer.needs_model
    if needs_loss:
        _require_use(localizer, settings, loss, dev, batches)
    generator = _generator(seed)
    region = pair.region(parameters)
    alone = isinstance(sparsity, str) or not isinstance(sparsity, Iterable) or getattr(sparsity, "ndim", 1) == 0
    sizes = [sparsity] if alone else [*sparsity]
    if not sizes:
        raise ParamsError("sparsity: there are no sizes")
    budgets = [Budget.of(region, size, "sparsity") for size in sizes]
    objective = OwnLoss.of(pair, region, loss, batches, dev).objective() if needs_loss else NO_OBJECTIVE
    title = progress if isinstance(progress, str) else localizer.name if progress else ""
    masks = masks_between(localizer, objective, pair, region, budgets, generator, title)
    if left_out := masks[0].record.get("left_out"):
        _tell(left_out, chosen=parameters is not None)
    if heads:
        masks = [replace(mask, record={"heads": sorted(pair.heads), **mask.record}) for mask in masks]
    return masks[0] if alone else dict(zip(sizes, masks, strict=True))


def _tell(left_out: Mapping[str, Any], chosen: bool) -> None:
    """Say what moved outside of the region, louder where nobody chose the region."""
    share, most = left_out["share"], left_out["most"]
    LOGGER.log(
        logging.WARNING if share >= TOLD and not chosen else logging.INFO,
        "%.2g %% of the squared movement is outside of the region, most of it in %s, and in no graft; parameters='all' takes it in",
        100 * share, most,
    )  # fmt: skip


def _refuse_misspelt(method: object, settings: Mapping[str, Any]) -> None:
    """Raise ParamsError for what is no setting of the method and reads like an argument of `localize`."""
    known = [*kind_of(method).model_fields] if isinstance(method, str) else []
    own = [*signature(localize).parameters][:-1]
    for name in settings.keys() - {*known}:
        if (near := get_close_matches(name, [*known, *own], n=1)) and near[0] in own:
            raise ParamsError(f"{name}: unknown argument (did you mean {near[0]!r}?)")


def _generator(seed: object) -> np.random.Generator:
    if not isinstance(seed, np.random.Generator) and not (isinstance(seed, int | np.integer) and seed >= 0):
        raise ParamsError(f"seed: {seed!r} should be a whole number, at least 0, or a generator of numpy")
    return np.random.default_rng(seed)


def _require_use(localizer: Localizer, settings: dict[str, Any], loss: object, dev: object, batches: object) -> None:
    """Raise ParamsError if a method that takes gradients has no loss, for arguments that are none, or settings that would change nothing."""
    for name, why in (WITHOUT_ROWS | ({} if dev else WITHOUT_DEV)).items():
        if name in settings and settings[name] != "last":
            raise ParamsError(f"{localizer.name}.{name}: {why}")
    if not callable(loss):
        hint = "pass loss=, a function of the model; movement needs none"
        given = "" if loss is None else f", and {type(loss).__name__} is none: a function such as lambda model: ..."
        raise ParamsError(f"loss: {localizer.name} takes gradients{given}; {hint}")
    if localizer.of_examples and batches is None:
        hint = "pass batches=, a list of single examples, and loss(model, batch)"
        raise ParamsError(f"batches: {localizer.name} squares the gradient of each example, not of all at once; {hint}")
    require_takes(loss, "loss", *(("model",) if batches is None else ("model", "batch")))
    require_list(batches if batches is not None else [], "batches")
    if dev is not None:
        require_takes(dev, "dev", "model")
