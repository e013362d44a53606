"""Passes over many examples, in batches that fit into memory: label logits, dev score, gradient of the loss.

Of completions each token is predicted with all of the reference before it (teacher forcing), and logits over the vocabulary
are never kept.  That also tells what greedy decoding writes: it writes the reference exactly if the most probable token is that
of the reference at every place.  By induction: as long as it was at all places before, decoding has written the reference so
far, so both see the same text and choose the same token; and at the first place where it is another, decoding writes another.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from skill_grafting.support.errors import TrainingError
from stages.text.models.batching import Batch, by_length
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.scores.classification import TOKEN_RECORD, task_score
from stages.text.tasks.runtime import wide

# called with the number of examples done
OnBatch = Callable[[int], object]
# appended to errors of diverging losses
DIVERGED = "lower the learning rate, or clip_norm (0 clips nothing)"


@torch.inference_mode()
def predict(model: LabelModel, examples: list[Example], on_batch: OnBatch = lambda _: None) -> Tensor:
    """Label logits of every example in its order, float32 on the CPU, shape (n, labels).

    Batches hold examples of similar length.
    """
    logits, order, found = torch.empty(len(examples), len(model.task.labels)), list[int](), list[Tensor]()
    for rows, part, _ in logits_of(model, examples):
        found.append(part)
        order += rows
        on_batch(len(rows))
    if found:  # copied once: a copy waits for all that comes before it
        logits[order] = torch.cat(found).cpu()
    return logits


def predictions_of(model: LabelModel, examples: list[Example]) -> tuple[Tensor, float]:
    """Predictions for each example, as in_rows has them, and the mean cross-entropy in nats, of completions by token."""
    if model.mode == "generative":
        records = predict_tokens(model, examples)
        loss = -float(records["log_probability"].mean(dtype=float))
        return in_rows(torch.from_numpy(records["predicted"].copy()), examples), loss
    logits, labels = predict(model, examples), torch.tensor([example.label for example in examples])
    return in_rows(logits.argmax(1), examples), float(cross_entropy(logits.double(), labels))


def in_rows(numbers: Tensor, examples: list[Example]) -> Tensor:
    """Label or token numbers, one after the other, as a row for each example, (n, most), filled up with -1."""
    parts = numbers.split([len(example.targets) for example in examples])
    return torch.nn.utils.rnn.pad_sequence([*parts], batch_first=True, padding_value=-1)


def answers_of(examples: list[Example]) -> Tensor:
    """The targets of each example, as in_rows has them."""
    return in_rows(torch.tensor([target for example in examples for target in example.targets]), examples)


def same_rows(predicted: Tensor, others: Tensor) -> float:
    """Share of examples with equal predictions; of a completion all tokens have to be equal."""
    return float((predicted == others).all(1).double().mean())


def dev_score(model: LabelModel, examples: list[Example]) -> tuple[float, float]:
    """(accuracy, -mean cross-entropy) on dev: higher is better, the loss decides between equal accuracies.

    Accuracy of completions is their exact match.  Raises TrainingError if the loss is not a number.
    """
    predicted, loss = predictions_of(model, examples)
    if not math.isfinite(loss):  # after the last step no batch's loss would show it
        raise TrainingError(f"the loss on dev became {loss}; {DIVERGED}")
    return same_rows(predicted, answers_of(examples)), -loss


def own_score(model: LabelModel, examples: list[Example]) -> float:
    """The task's own metric on the examples: accuracy, F1 or Matthews correlation, of completions their exact match."""
    if model.mode == "generative":
        return same_rows(predictions_of(model, examples)[0], answers_of(examples))
    labels = np.array([example.label for example in examples])
    return task_score(predict(model, examples).float().numpy(), labels, model.task.labels, model.task)


def loss_of(model: LabelModel, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy of a batch, of completions by token, to take the gradient of.

    With `runtime.gradient_checkpointing` only what goes into each layer is kept, and the rest is computed again.
    """
    with recomputed(model.model) if model.runtime.gradient_checkpointing else nullcontext():
        return cross_entropy(model.logits(batch), batch.labels, reduction=reduction)


def loss_gradient(model: LabelModel, examples: list[Example]) -> Tensor:
    """Mean cross-entropy of the examples, of completions by token; leaves its gradient in `.grad` of whatever is trained.

    Batches of similar length at a time; the sum over batches is the full-batch gradient exactly as
    defined, up to the order of float32 additions.  The loss, float64, isn't read from the device.
    """
    model.model.zero_grad(set_to_none=True)
    total, count = torch.zeros((), dtype=torch.float64), count_targets(examples)
    for batch in by_length(examples, model.runtime.batch_tokens):
        inputs = model.batch([examples[index] for index in batch])
        loss = loss_of(model, inputs, "sum") / count
        loss.backward()
        total = total + wide(loss)
    for weight in model.parameters().values():
        if weight.requires_grad and weight.grad is None:  # no part of the loss
            weight.grad = torch.zeros_like(weight)
    return total


def count_targets(examples: list[Example]) -> int:
    """The unit that a mean loss is the mean of: labels, or tokens."""
    return sum(len(example.targets) for example in examples)


@contextmanager
def recomputed(model: Module) -> Iterator[None]:
    """Gradient checkpointing (Chen et al., 2016): of each of the model's repeated layers a pass keeps only what goes into it.

    transformers' own switch works in training mode alone, and the gradients of masks are taken without dropout.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def predict_tokens(
    model: LabelModel, examples: list[Example], on_batch: OnBatch = lambda _: None, degrees: float = 1.0
) -> np.ndarray:
    """Records TOKEN_RECORD of every token of the completions in the examples' order, at a temperature."""
    order, found = list[int](), list[tuple[Tensor, Tensor, Tensor]]()
    for rows, logits, targets in logits_of(model, examples):
        predicted, logs = logits.argmax(1), (logits / degrees).log_softmax(1)
        chosen, true = (logs.gather(1, tokens[:, None])[:, 0] for tokens in (predicted, targets))
        found.append((predicted, chosen.exp(), true))
        order += rows
        on_batch(len(rows))
    if not found:
        return np.empty(0, TOKEN_RECORD)
    # copied once, as in `predict`
    records = np.empty(count_targets(examples), TOKEN_RECORD)
    for name, parts in zip(TOKEN_RECORD.names, zip(*found, strict=True), strict=True):
        records[name] = torch.cat(parts).cpu()
    parts = np.split(records, np.cumsum([len(examples[row].targets) for row in order])[:-1])
    return np.concatenate([parts[place] for place in np.argsort(order)])


@torch.inference_mode()
def logits_of(model: LabelModel, examples: list[Example]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Places of a batch's examples, its logits, and labels or tokens of the reference: LabelModel.logits, Batch.labels."""
    model.model.eval()
    for rows in by_length(examples, model.runtime.batch_tokens):
        batch = model.batch([examples[row] for row in rows])
        yield rows, model.logits(batch), batch.labels
