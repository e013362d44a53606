"""Squared gradients of single examples: the diagonal of the Fisher information.

The square of a batch's gradient is something else, as gradients of opposite sign cancel in it.  Yet
examples needn't go one at a time: a batch's forward and backward pass gives each layer's inputs and
the gradients of its outputs, example by example, and the gradient of one example with respect to
that layer's parameters follows from those two alone.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from skill_grafting.localizers.localizer import add_squared_gradient
from stages.text.models.batching import by_length
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel

Mode = Literal["empirical", "expected", "sampled", "sampled_logit", "label_logit"]
MODES: tuple[str, ...] = get_args(Mode)
# Local name -> full name of the parameters asked for, for each module that owns some.
Owners = dict[nn.Module, dict[str, str]]
# Gradients of single examples are made for this many numbers at a time: of a linear layer as many as fit the cache (1 MiB in
# float32), of others more (64 MiB), as each time costs them a forward pass of the layer
PIECE, NUMBERS = 2**18, 2**24


def squared_gradients(
    model: LabelModel,
    examples: list[Example],
    names: Collection[str],
    mode: Mode = "empirical",
    draws: int = 1,
    generator: np.random.Generator | None = None,
) -> dict[str, Tensor]:
    """Sum over examples of the squared gradient of each one's own loss: name -> the parameter's shape.

    empirical: of -log p(label).  expected: the mean of that square over labels drawn from the model
    itself, sum over c of p_c * grad(-log p_c)^2, exactly.  sampled: the same mean over `draws` labels
    that the model draws for each example with `generator`.  sampled_logit and label_logit: of the
    logit of the drawn or of the true label itself, which is no Fisher information: adding one number
    to all logits of an example changes it.  Afterwards `names` alone require gradients, as after `train_only`; `.grad` is left as it is.
    Raises ValueError if labels are to be drawn and there is no generator.
    """
    if is_sampled(mode) and generator is None:
        raise ValueError(f"mode {mode!r} draws labels, so it needs a generator")
    weights = model.train_only({*names})
    model.model.eval()
    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    owners = _owners(model.model, weights)
    places = torch.from_numpy(generator.random((len(examples), draws))) if is_sampled(mode) else None
    for rows in by_length(examples, model.runtime.batch_tokens):
        batch = [examples[row] for row in rows]
        target = Target(mode, None if places is None else places[rows])
        if not (owners and _add_by_layer(model, batch, target, owners, totals)):
            _add_one_by_one(model, batch, target, weights, totals)
    return totals


def is_sampled(mode: str) -> bool:
    """True for a mode that draws labels."""
    return mode.startswith("sampled")


@dataclass(frozen=True)
class Target:
    """The differentiated quantity: the mode, and for drawn labels numbers of 0..1, (B, draws)."""

    mode: Mode
    places: Tensor | None


def _losses(logits: Tensor, labels: Tensor, target: Target) -> Iterator[Tensor]:
    """Losses (B,) whose squared gradients add up to the mode's, each a backward pass of its own."""
    surprise = -torch.log_softmax(logits, 1)
    values = logits if target.mode.endswith("_logit") else surprise
    if target.mode in ("empirical", "label_logit"):
        yield values.gather(1, labels[:, None])[:, 0]
    elif target.mode == "expected" and logits.shape[1] == 2:
        # the two squares add up to p_0 p_1 times that of the difference of the logits
        yield (logits[:, 0] - logits[:, 1]) * torch.exp(-surprise.detach().sum(1) / 2)
    elif target.mode == "expected":
        for column in surprise.T:
            yield column * torch.exp(-column.detach() / 2)  # the root of p_c: it is squared with the gradient
    else:
        yield from _drawn(values, drawn_labels(logits.detach(), target.places))


def drawn_labels(logits: Tensor, places: Tensor) -> Tensor:
    """Labels (B, draws) of softmax(logits), each where its place of 0..1 lies among the added-up probabilities."""
    steps = torch.softmax(logits.double(), 1).cumsum(1)[:, :-1].contiguous()
    return torch.searchsorted(steps, places.to(steps.device), right=True)


def _drawn(values: Tensor, drawn: Tensor) -> Iterator[Tensor]:
    """The mean over draws; with more of them than labels, one pass for each label and how often it was drawn."""
    draws, labels = drawn.shape[1], values.shape[1]
    if draws <= labels:
        for column in drawn.T:
            yield values.gather(1, column[:, None])[:, 0] / draws**0.5
    else:
        for label in range(labels):
            yield values[:, label] * (drawn == label).double().mean(1).sqrt().to(values.dtype)


def _add_one_by_one(
    model: LabelModel, examples: list[Example], target: Target, weights: dict[str, Tensor], totals: dict[str, Tensor]
) -> None:
    for number, example in enumerate(examples):
        batch = model.batch([example])
        alone = Target(target.mode, None if target.places is None else target.places[number : number + 1])
        for loss in _losses(model.logits(batch), batch.labels, alone):
            add_squared_gradient(loss.sum(), weights, totals)


def _add_by_layer(
    model: LabelModel, examples: list[Example], target: Target, owners: Owners, totals: dict[str, Tensor]
) -> bool:
    """Add a batch at once; False, and nothing added, if some layer doesn't go example by example."""
    batch = model.batch(examples)
    with _recorded(owners) as calls:
        logits = model.logits(batch)
    if not all(_is_separable(module, calls[module], len(examples)) for module in owners):
        return False
    outputs = [calls[module][0][1] for module in owners]
    for losses in _losses(logits, batch.labels, target):
        deltas = torch.autograd.grad(
            losses.sum(), outputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for (module, names), delta in zip(owners.items(), deltas, strict=True):
            inputs = calls[module][0][0][0].detach()
            if type(module) is nn.Linear:
                _add_linear(names, inputs, delta, totals)
                continue
            with model.runtime.autocast():
                _add_layer(module, names, inputs, delta, totals)
    return True


def _add_linear(names: dict[str, str], inputs: Tensor, deltas: Tensor, totals: dict[str, Tensor]) -> None:
    """Square and add a linear layer's gradients, from its inputs (B, ..., in) and output gradients (B, ..., out).

    An example's gradient is one product of the two, made piece by piece in memory that is used again.
    """
    dtype = next(totals[name].dtype for name in names.values())
    inputs, deltas = (part.reshape(len(part), -1, part.shape[-1]).to(dtype) for part in (inputs, deltas))
    if "bias" in names:
        totals[names["bias"]] += deltas.sum(1).square_().sum(0)
    if "weight" not in names:
        return
    total, turned = totals[names["weight"]], deltas.transpose(1, 2)
    height, examples = max(1, PIECE // total.shape[1]), max(1, PIECE // total.numel())
    scratch = total.new_empty(examples, min(height, len(total)), total.shape[1])
    for first in range(0, len(total), height):
        rows = slice(first, first + height)
        for part, delta in zip(inputs.split(examples), turned[:, rows].split(examples), strict=True):
            made = torch.bmm(delta, part, out=scratch[: len(part), : delta.shape[1]])
            if len(made) == 1:
                total[rows].addcmul_(made[0], made[0])
            else:
                total[rows] += made.square_().sum(0)


def _add_layer(
    module: nn.Module, names: dict[str, str], inputs: Tensor, deltas: Tensor, totals: dict[str, Tensor]
) -> None:
    """Square and add the gradients of a layer of any other kind, from its inputs and output gradients, (B, ...) each."""
    parameters = {local: module.get_parameter(local).detach() for local in names}

    def gradient_of(example: Tensor, delta: Tensor) -> dict[str, Tensor]:
        _, pull = vjp(lambda values: functional_call(module, values, (example[None],)), parameters)
        return pull(delta[None])[0]

    portion = max(1, NUMBERS // sum(parameter.numel() for parameter in parameters.values()))
    for part, delta in zip(inputs.split(portion), deltas.split(portion), strict=True):
        for local, gradient in vmap(gradient_of)(part, delta).items():
            totals[names[local]] += gradient.square_().sum(0)


def _owners(model: nn.Module, weights: dict[str, Tensor]) -> Owners | None:
    """The module that owns each parameter; None if two share one, whose uses would add up before the square."""
    names = {weight: name for name, weight in weights.items()}
    owners: Owners = {}
    for module in model.modules():
        local = {name: names[weight] for name, weight in module.named_parameters(recurse=False) if weight in names}
        if local:
            owners[module] = local
    return owners if sum(map(len, owners.values())) == len(names) else None


@contextmanager
def _recorded(owners: Owners) -> Iterator[dict[nn.Module, list[tuple[Any, Any]]]]:
    """Inputs and output of every call of these modules, while the context lasts."""
    calls: dict[nn.Module, list[tuple[Any, Any]]] = {module: [] for module in owners}
    handles = [
        module.register_forward_hook(lambda module, inputs, output: calls[module].append((inputs, output)))
        for module in owners
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _is_separable(module: nn.Module, calls: list[tuple[Any, Any]], examples: int) -> bool:
    """True for one call from one tensor to another, both with one row for each example; not for a head of some words alone."""
    if len(calls) != 1 or len(calls[0][0]) != 1:
        return False
    inputs, output = calls[0][0][0], calls[0][1]
    if not all(isinstance(value, Tensor) and len(value) == examples for value in (inputs, output)):
        return False
    return not isinstance(module, nn.Linear) or output.shape[-1] == module.out_features
