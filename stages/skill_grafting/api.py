"""Skill grafting for any two torch modules of one architecture: `base`, and `tuned`, which was fine-tuned from it.

Parameters are named as in `named_parameters()`; tied parameters appear once.  A mistake of the caller raises a GraftError.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from .grafting.differences import is_plain
from .grafting.mask import GraftMask
from .grafting.region import Parameters, Region, Tensors, named_weights
from .grafting.select import NoNumberError
from .localizers.localizer import (
    NO_OBJECTIVE,
    Budget,
    Localizer,
    Objective,
    add_squared_gradient,
    find_masks,
    squares_of,
)
from .localizers.registry import Rank, as_localizer
from .modules.comparing import copied
from .modules.pairs import BaseOrPair, Pair, chosen
from .modules.targets import require_plain
from .support.errors import ModelError, ParamsError, one_number, require_takes

Loss = Callable[..., Tensor]
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


@overload
def localize(
    base: BaseOrPair, tuned: nn.Module | Tensors | None = None, *, sparsity: float | Budget, **options: Any
) -> GraftMask: ...
@overload
def localize(
    base: BaseOrPair, tuned: nn.Module | Tensors | None = None, *, sparsity: Sequence[Any], **options: Any
) -> dict[Any, GraftMask]: ...
def localize(
    base: BaseOrPair,
    tuned: nn.Module | Tensors | None = None,
    *,
    sparsity: "float | Budget | Sequence[float]",
    method: "str | Localizer | Rank" = "movement",
    loss: Loss | None = None,
    batches: Sequence[Any] | None = None,
    dev: Callable[[nn.Module], float] | None = None,
    parameters: Parameters = None,
    heads: Parameters = None,
    seed: int | np.random.Generator = 0,
    progress: bool | str = True,
    **settings: Any,
) -> GraftMask | dict[Any, GraftMask]:
    """Find the mask of floor(sparsity * size) parameters; a list of sizes gives a mask of each: {0.001: mask, ...}.

    base, tuned: two modules, or the values of a region of each by name.  The pair of two checkpoints (see `read_pair`) takes the place
    of both.  `method` is a name (see `methods`), and `settings` are the method's own, such as steps=50.

    The region, which is what may be selected, is all that moved except heads, tables of embeddings, output embeddings and poolers.
    `parameters` says otherwise, whether it moved or not: "all" but heads, groups such as "layers", names or glob patterns of parameters
    or modules, or a function of the name.  `heads` names heads beside the usual ones, in the same ways.

    Methods that look at more than weights need `loss(model)`, a scalar, or `loss(model, batch)` with a list of `batches`.  They see a
    copy of the base in eval mode, with the heads and buffers of `tuned`.  `fish` and `talos` square the gradient of each batch, so each
    batch should be one example.  `dev(model)` is a score to maximise: `learned` keeps the mask of its best step (the authors' rule),
    and without it that of the last step; settings that need dev, such as eval_steps, are refused without it.

    Equal seeds give equal masks.  `mask.record` says how a mask was found.  A mask is smaller than asked for if the method has no more
    to select (bias) or ends earlier (threshold).
    """
    pair = Pair.of(base, tuned, heads)
    localizer = as_localizer(method, settings)
    needs_loss = loss is not None if localizer.needs_model is None else localizer.needs_model
    if needs_loss:
        _require_use(localizer, settings, loss, dev, batches)
    generator = _generator(seed)
    region = pair.region(parameters)
    alone = (
        isinstance(sparsity, str | Budget) or not isinstance(sparsity, Iterable) or getattr(sparsity, "ndim", 1) == 0
    )
    sparsity = sparsity if alone else [*sparsity]
    if not alone and not sparsity:
        raise ParamsError("sparsity: there are no sizes")
    budgets = [Budget.of(region, size, "sparsity") for size in ([sparsity] if alone else sparsity)]
    objective = _objective(pair, region, loss, batches, dev) if needs_loss else NO_OBJECTIVE
    if not localizer.refuses_infinite:
        pair.require_finite(region.shapes)
    title = progress if isinstance(progress, str) else localizer.name if progress else ""
    try:
        masks = find_masks(localizer, objective, region, (pair.compared, pair.after), budgets, generator, title)
    except NoNumberError:
        pair.require_finite(region.shapes)
        raise
    if heads:
        named = {"heads": sorted(pair.heads)}
        masks = [replace(mask, record={**named, **mask.record}) for mask in masks]
    return masks[0] if alone else dict(zip(sparsity, masks, strict=True))


def fisher(
    model: nn.Module, loss_per_example: Loss, examples: Iterable[Any], parameters: Parameters = None
) -> dict[str, Tensor]:
    """The diagonal of the Fisher information: squared gradients of each example's own loss, summed over the examples.

    `loss_per_example(model, example)` gives -log p(label) for the empirical Fisher information (FISH, surgical fine-tuning).  It may also
    give several losses, whose squared gradients are added: -log p(c) * sqrt(p(c)) for all classes c, with the root detached, is the
    expectation over the model's own labels (TaLoS).  The result has a tensor of the parameter's shape for each name that is chosen
    by `parameters` and requires gradients.  The model stays in the mode that it is in.
    """
    for name, weight in (known := named_weights(model)).items():
        require_plain(name, weight)
    require_takes(loss_per_example, "loss_per_example", "model", "example")
    _require_list(examples, "examples")
    with torch.inference_mode(False), torch.enable_grad():
        if any(weight.is_inference() for weight in model.parameters()):
            model = copied(model)  # such tensors take no gradient
            known = named_weights(model)
        weights = {name: known[name] for name in chosen([*known], parameters) if known[name].requires_grad}
        if not weights:
            raise ModelError("parameters: none of those chosen requires gradients")
        totals, seen = {name: squares_of(weight) for name, weight in weights.items()}, False
        for example in examples:
            seen = True
            for loss in _differentiable(loss_per_example(model, example)).reshape(-1):
                add_squared_gradient(loss, weights, totals)
    if not seen:
        raise ParamsError("examples: there are none; an iterator can be used only once, so pass a list")
    return totals


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
    require_takes(loss, "loss", *(("model",) if batches is None else ("model", "batch")))
    _require_list(batches if batches is not None else [], "batches")
    if dev is not None:
        require_takes(dev, "dev", "model")


def _require_list(values: object, setting: str) -> None:
    if isinstance(values, Mapping | str) or not isinstance(values, Iterable):
        raise ParamsError(f"{setting}: should be a list, not a {type(values).__name__}; [one] is a list of one")


def _objective(
    pair: Pair,
    region: Region,
    loss: Loss,
    batches: Sequence[Any] | None,
    dev: Callable[[nn.Module], float] | None,
) -> Objective:
    """The caller's own loss, of a copy of the base with the heads and buffers of the tuned model."""
    parts = [()] if batches is None else [(batch,) for batch in batches]
    if not parts:
        raise ParamsError("batches: there are none; an iterator can be used only once, so pass a list")
    if pair.model is None:
        raise ParamsError("base and tuned: a loss is of modules, and these are tensors by name; pass the two modules")
    with torch.inference_mode(False):
        model = pair.live().eval()
    weights = {name: weight for name, weight in named_weights(model).items() if name in region.shapes}
    if narrow := [name for name, one in weights.items() if one.dtype not in (torch.float32, torch.float64)]:
        hint = "pass base.float() and tuned.float(), or " if weights[narrow[0]].is_floating_point() else ""
        problem = f"gradients are taken in float32, and {narrow[0]} is {weights[narrow[0]].dtype}"
        raise ModelError(f"{problem}: {hint}choose others by parameters=")
    if strange := [name for name in weights if not (is_plain(pair.before[name]) and is_plain(pair.after[name]))]:
        problem = (
            f"a method that takes gradients blends the two models, and {strange[0]} has infinite values or no numbers"
        )
        raise ModelError(f"{problem}: choose others by parameters=")
    for weight in model.parameters():
        weight.requires_grad_(any(weight is one for one in weights.values()))
    seen: list[Tensor] = []

    @torch.enable_grad()
    def gradient(of: list[tuple]) -> Tensor:
        for weight in weights.values():
            weight.grad = torch.zeros_like(weight)
        total = torch.zeros(())
        for part in of:
            value = _differentiable(loss(model, *part))
            if value.numel() != 1:
                raise ParamsError(f"loss: should give one number, not a tensor of {[*value.shape]}; take its mean")
            value = value.reshape(()) / len(of)
            value.backward()
            total = total + value.detach()
        if not seen:  # looked at once, as it waits for the device
            seen.append(total)
            _require_gradient({name: weight.grad for name, weight in weights.items()}, total)
        return total

    def batch_gradients(_size: int) -> Callable[..., Tensor]:
        turns = cycle(parts)
        return lambda: gradient([next(turns)])

    def squares(count: int, *_: Any) -> Tensors:
        found = fisher(model, lambda _, part: loss(model, *part), parts[:count])
        _require_gradient(found)
        return found

    @torch.no_grad()
    def score() -> dict[str, float]:
        value = one_number(dev(model), "dev")
        if value != value:
            raise ParamsError("dev: should give a number to maximise, not nan")
        return {"score": value}

    @torch.no_grad()
    def whole_loss() -> float:
        return sum(one_number(loss(model, *part), "loss") for part in parts) / len(parts)

    measures = {"scores": dev and score, "loss": whole_loss}
    return Objective(weights, batch_gradients, lambda: gradient(parts), squares, **measures, module=model)


def _differentiable(value: object) -> Tensor:
    if not isinstance(value, Tensor) or not value.requires_grad:
        what = "a tensor without a gradient" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ParamsError(
            f"loss: should give a tensor that depends on the parameters of the model it is given, not {what}"
        )
    return value


def _require_gradient(gradients: Tensors, loss: Tensor | None = None) -> None:
    values = [*gradients.values(), *([] if loss is None else [loss])]
    if not all(bool(torch.isfinite(one).all()) for one in values):
        raise ModelError("loss: it or its gradient is infinite or no number for the model at the start; check the data")
    if not any(bool(one.any()) for one in gradients.values()):
        raise ModelError("loss: its gradient is 0 everywhere in the region; it has to be of the model that it is given")
