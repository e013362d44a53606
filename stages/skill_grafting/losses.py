"""The caller's own loss: its Fisher information, and what localizers ask of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from .grafting.differences import is_plain
from .grafting.region import Parameters, Region, Tensors, named_weights
from .localizers.localizer import Objective, add_squared_gradient, squares_of
from .modules.pairs import Pair, chosen
from .modules.targets import copied, require_plain, require_whole
from .support.errors import ModelError, ParamsError, a_kind, one_number, require_takes

LOGGER = logging.getLogger("skill_grafting")


def fisher(
    model: nn.Module, loss_per_example: Callable[..., Tensor], examples: Iterable[Any], parameters: Parameters = None
) -> dict[str, Tensor]:
    """The diagonal of the Fisher information: squared gradients of each example's own loss, summed over the examples.

    `loss_per_example(model, example)` gives -log p(label) for the empirical Fisher information (FISH, surgical fine-tuning).  It may also
    give several losses, whose squared gradients are added: -log p(c) * sqrt(p(c)) for all classes c, with the root detached, is the
    expectation over the model's own labels (TaLoS).  The result has a tensor of the parameter's shape for each name that is chosen
    by `parameters` and requires gradients.  The model stays in the mode that it is in.

        squares = sg.fisher(model, lambda model, row: cross_entropy(model(row[0]), row[1]), rows)

    Raises ParamsError for arguments that can't be, ModelError if none of the parameters takes gradients or one has no values.
    """
    require_whole(model)
    known = named_weights(model)
    require_takes(loss_per_example, "loss_per_example", "model", "example")
    require_list(examples, "examples")
    with torch.inference_mode(False), torch.enable_grad():
        if any(weight.is_inference() for weight in model.parameters()):
            model = _with_hooks(copied(model), known)  # such tensors take no gradient
            known = named_weights(model)
        weights = {name: known[name] for name in chosen([*known], parameters) if known[name].requires_grad}
        if not weights:
            raise ModelError("parameters: none of those chosen requires gradients")
        for name, weight in weights.items():
            require_plain(name, weight)
        totals, seen = {name: squares_of(weight) for name, weight in weights.items()}, False
        for example in examples:
            seen = True
            for loss in _differentiable(loss_per_example(model, example)).reshape(-1):
                add_squared_gradient(loss, weights, totals)
    if not seen:
        raise ParamsError("examples: there are none; an iterator can be used only once, so pass a list")
    return totals


@dataclass(frozen=True)
class OwnLoss:
    """The caller's loss and score, of a copy of the base with the heads and buffers of the tuned model.

    parts: what the loss is called with beside the model, () or (batch,).
    """

    model: nn.Module
    weights: dict[str, nn.Parameter]
    loss: Callable[..., Tensor]
    parts: list[tuple]
    dev: Callable[[Any], SupportsFloat] | None
    looked_at: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, pair: Pair, region: Region, loss: Callable, batches: Iterable[Any] | None, dev: Callable | None
    ) -> OwnLoss:
        """Raises an error if no gradient can be taken between these two, or there are no batches."""
        parts = [()] if batches is None else [(batch,) for batch in batches]
        if not parts:
            raise ParamsError("batches: there are none; an iterator can be used only once, so pass a list")
        if pair.model is None:
            raise ParamsError(
                "base and tuned: a loss is of modules, and these are tensors by name; pass the two modules"
            )
        with torch.inference_mode(False):
            model = pair.live().eval()
        weights = {name: weight for name, weight in named_weights(model).items() if name in region.shapes}
        if narrow := [name for name, one in weights.items() if one.dtype not in (torch.float32, torch.float64)]:
            hint = (
                "pass copies in float32 (copy.deepcopy(base).float(), and so tuned), or "
                if weights[narrow[0]].is_floating_point()
                else ""
            )
            problem = f"gradients are taken in float32, and {narrow[0]} is {weights[narrow[0]].dtype}"
            raise ModelError(f"{problem}: {hint}choose others by parameters=")
        if strange := [name for name in weights if not (is_plain(pair.before[name]) and is_plain(pair.after[name]))]:
            problem = f"{strange[0]} has infinite values or no numbers"
            raise ModelError(
                f"a method that takes gradients blends the two models, and {problem}: choose others by parameters="
            )
        for weight in model.parameters():
            weight.requires_grad_(any(weight is one for one in weights.values()))
        return cls(model, weights, _cast_anew(loss), parts, dev and _cast_anew(dev))

    def objective(self) -> Objective:
        """As localizers ask for it."""
        measures = {"scores": self.dev and self.scores, "loss": self.whole_loss}
        whole = partial(self.gradient, self.parts)
        return Objective(self.weights, self.batch_gradients, whole, self.squares, **measures, module=self.model)

    @torch.enable_grad()
    def gradient(self, parts: Sequence[tuple]) -> Tensor:
        """The mean loss of these parts, with its gradient in the weights."""
        for weight in self.weights.values():
            weight.grad = torch.zeros_like(weight)
        total = torch.zeros(())
        for part in parts:
            value = _differentiable(self.loss(self.model, *part))
            if value.numel() != 1:
                raise ParamsError(f"loss: should give one number, not a tensor of {[*value.shape]}; take its mean")
            value = value.reshape(()) / len(parts)
            value.backward()
            total = total + value.detach()
        if "gradient" not in self.looked_at:  # once, as it waits for the device
            self.looked_at.add("gradient")
            _require_gradient({name: weight.grad for name, weight in self.weights.items()}, total)
        return total

    def batch_gradients(self, _size: int) -> Callable[[], Tensor]:
        """A batch after the other, from the first on."""
        turns = cycle(self.parts)
        return lambda: self.gradient([next(turns)])

    def squares(self, count: int, *_: object) -> Tensors:
        """The sum of the squared gradients of so many parts."""
        if "rows" not in self.looked_at and (rows := max(_rows_in(*part) for part in self.parts[:count])) > 1:
            self.looked_at.add("rows")
            LOGGER.warning("a batch of %s rows is squared as one: make batches of single examples", rows)
        found = fisher(self.model, lambda model, part: self.loss(model, *part), self.parts[:count])
        _require_gradient(found)
        return found

    @torch.no_grad()
    def scores(self) -> dict[str, float]:
        """The caller's score."""
        value = one_number(self.dev(self.model), "dev")
        if value != value:
            raise ParamsError("dev: should give a number to maximise, not nan")
        return {"score": value}

    @torch.no_grad()
    def whole_loss(self) -> float:
        """The mean loss of all parts."""
        return sum(one_number(self.loss(self.model, *part), "loss") for part in self.parts) / len(self.parts)


def _with_hooks(model: nn.Module, known: Mapping[str, Tensor]) -> nn.Module:
    """The copy of a model with the hooks of its parameters."""
    for name, weight in named_weights(model).items():
        for hook in (known[name]._backward_hooks or {}).values():
            weight.register_hook(hook)
    return model


def require_list(values: object, setting: str) -> None:
    """Raise ParamsError unless these can be gone through one by one, as the names of a dictionary and the letters of a text are not meant to."""
    if isinstance(values, Mapping | str) or not isinstance(values, Iterable):
        raise ParamsError(f"{setting}: should be a list, not {a_kind(values)}; [one] is a list of one")


def _rows_in(batch: object = None) -> int:
    """How many rows a batch has, where its parts show it: tensors of one length, and not all of them flat."""
    parts = [*batch.values()] if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else []
    tensors = [part for part in parts if isinstance(part, Tensor) and part.ndim]
    lengths = {len(part) for part in tensors}
    return lengths.pop() if len(lengths) == 1 < len(tensors) and any(part.ndim > 1 for part in tensors) else 1


def _cast_anew(function: Callable) -> Callable:
    """The function without the casts of weights that torch.autocast around it kept from before they were overwritten."""

    def cast_anew(*given: object) -> object:
        torch.clear_autocast_cache()
        return function(*given)

    return cast_anew


def _differentiable(value: object) -> Tensor:
    if not isinstance(value, Tensor) or not value.requires_grad:
        what = "a tensor without a gradient" if isinstance(value, Tensor) else a_kind(value)
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
