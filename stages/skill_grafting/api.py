"""Skill grafting for any two torch modules of one architecture: `base`, and `tuned`, which was fine-tuned from it.

Names of parameters are those of `named_parameters`, one name for tied ones.  Mistakes of the caller raise a GraftError.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from .errors import DataError, ModelError, ParamsError
from .grafting.mask import GraftMask
from .grafting.mask_indices import read_indices
from .grafting.modules import Parameters, chosen, graft, region_of
from .grafting.region import Region, Tensors, named_weights
from .localizers.evidence import LocalizerInput, add_squared_gradient, from_tensors
from .localizers.registry import Budget, localizer_of
from .metrics.calibration import binned, softmax

Loss = Callable[..., Tensor]


def localize(
    base: nn.Module,
    tuned: nn.Module,
    *,
    sparsity: float,
    method: str = "movement",
    loss: Loss | None = None,
    batches: Sequence[Any] | None = None,
    parameters: Parameters = None,
    seed: int | np.random.Generator = 0,
    **settings: Any,
) -> GraftMask:
    """The mask of floor(sparsity * size) parameters by a localizer: movement, learned, grown, attribution, fish, talos, ...

    `parameters`, glob patterns or a function of the name, chooses the region; by default it is all that moved, heads aside.
    Localizers that look at more than weights take gradients of `loss(model)`, a scalar, or of `loss(model, batch)` over
    `batches`: of the mean, or of one batch after the other where they take steps; fish and talos square that of each batch, so
    let each be one example.  The model is then a copy in eval mode, with the heads and buffers of `tuned`.  `settings` are the
    localizer's own, such as steps=50; those about rows to choose by (dev) change nothing here.  The mask is smaller where a
    localizer has no more to select (bias), or ends earlier (grown, threshold).
    """
    region = region_of(base, tuned, parameters)
    if given := {"mode", "draws"} & {*settings}:
        raise ParamsError(f"{method}.{min(given)}: the loss itself determines whose gradient is squared (see `fisher`)")
    localizer = localizer_of(method, settings)
    budget = Budget.of(region, sparsity, "sparsity")
    before, after = (_values(model, region) for model in (base, tuned))
    generator = np.random.default_rng(seed)
    if not localizer.needs_model:
        evidence = from_tensors(region, before, after, generator)
    elif loss is None:
        raise ParamsError(f"loss: {method} needs gradients, so pass a loss; movement needs none")
    elif narrow := [name for name, one in after.items() if one.dtype not in (torch.float32, torch.float64)]:
        hint = "pass base.float() and tuned.float(), or choose others by parameters="
        raise ModelError(f"{method} works in float32, and {narrow[0]} is {after[narrow[0]].dtype}: {hint}")
    else:
        parts = [()] if batches is None else [(batch,) for batch in batches]
        if not parts:
            raise ParamsError("batches: there are none; an iterator can be used only once, so pass a list")
        with torch.inference_mode(False):
            model = graft(base, tuned, GraftMask.empty(region)).eval()
        evidence = _evidence(model, region, (before, after), loss, parts, generator)
    with torch.inference_mode(False):
        return localizer.find(evidence, budget).mask


def fisher(
    model: nn.Module, loss_per_example: Loss, examples: Iterable[Any], parameters: Parameters = None
) -> dict[str, Tensor]:
    """The sum over examples of the squared gradient of each one's own loss: the diagonal of the Fisher information.

    `loss_per_example(model, example)` gives -log p(label) for the empirical one (FISH, surgical fine-tuning), or several losses
    whose squares are added: -log p(c) * sqrt(p(c)) of all classes c, the root detached, for the expectation over the model's own
    labels (TaLoS).  Name -> the shape of the parameter, of those chosen that require gradients; the mode is left as it is.
    """
    known = named_weights(model)
    weights = {name: known[name] for name in chosen([*known], parameters) if known[name].requires_grad}
    if not weights:
        raise ModelError("parameters: none of those chosen requires gradients")
    # squares of narrow types would be rounded away beside their sum
    wide_types = {name: torch.promote_types(weight.dtype, torch.float32) for name, weight in weights.items()}
    totals = {name: torch.zeros_like(weight, dtype=wide_types[name]) for name, weight in weights.items()}
    with torch.inference_mode(False), torch.enable_grad():
        for example in examples:
            for loss in _differentiable(loss_per_example(model, example)).reshape(-1):
                add_squared_gradient(loss, weights, totals)
    return totals


def calibration_error(logits: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """The expected calibration error (equation 6) of logits (n, classes) on labels (n,), which count classes from 0."""
    logits, labels = (torch.as_tensor(values).detach().cpu() for values in (logits, labels))
    if logits.ndim != 2 or not logits.numel() or labels.shape != logits.shape[:1]:
        raise DataError(f"logits should be (n, classes) and labels (n,), not {[*logits.shape]} and {[*labels.shape]}")
    if not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise DataError(
            f"labels: should be within 0..{logits.shape[1] - 1}, one for each row; leave out rows without one"
        )
    if bins < 1:
        raise ParamsError(f"bins: {bins} should be 1 or more")
    probabilities = softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)).numpy())
    return binned(probabilities.max(1), probabilities.argmax(1) == labels.numpy(), bins).ece


def load_mask(path: str | Path) -> GraftMask:
    """The mask of a file of `GraftMask.save`, of the pipeline or of a patch; MaskError if it is missing or damaged."""
    region, indices = read_indices(Path(path))
    return GraftMask.from_region_indices(region, torch.from_numpy(indices))


def _values(model: nn.Module, region: Region) -> dict[str, Tensor]:
    weights = named_weights(model)
    return {name: weights[name].detach() for name in region.shapes}


def _evidence(
    model: nn.Module, region: Region, ends: tuple, loss: Loss, parts: list[tuple], generator: np.random.Generator
) -> LocalizerInput:
    """The localizer's input for a live model, both sets of weights, and the caller's loss."""
    weights = {name: weight for name, weight in named_weights(model).items() if name in region.shapes}
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
        return lambda passed_over=False: gradient([next(turns)])

    def squares(count: int, *_: Any) -> Tensors:
        found = fisher(model, lambda _, part: loss(model, *part), parts[:count])
        _require_gradient(found)
        return found

    return LocalizerInput(region, *ends, weights, batch_gradients, lambda: gradient(parts), squares, generator)


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
