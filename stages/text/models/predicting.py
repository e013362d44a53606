"""Passes over many examples, in batches that fit into memory: label logits, dev score, gradient of the loss."""

import math
from collections.abc import Callable, Iterator, Sequence
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
from stages.text.scores.classification import task_score
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
    model.model.eval()
    logits, order, found = torch.empty(len(examples), len(model.task.labels)), list[int](), list[Tensor]()
    for rows in by_length(examples, model.runtime.batch_tokens):
        found.append(model.logits(model.batch([examples[row] for row in rows])))
        order += rows
        on_batch(len(rows))
    if found:  # copied once: a copy waits for all that comes before it
        logits[order] = torch.cat(found).cpu()
    return logits


def accuracy_and_loss(model: LabelModel, examples: list[Example]) -> tuple[float, float]:
    """Share of examples whose label is predicted, and the mean cross-entropy in nats."""
    logits, labels = predict(model, examples), torch.from_numpy(labels_of(examples))
    return float((logits.argmax(1) == labels).double().mean()), float(cross_entropy(logits.double(), labels))


def labels_of(examples: Sequence[Example]) -> np.ndarray:
    """Their label numbers, int64."""
    return np.array([example.label for example in examples], dtype=np.int64)


def dev_score(model: LabelModel, examples: list[Example]) -> tuple[float, float]:
    """(accuracy, -mean cross-entropy) on dev: higher is better, the loss decides between equal accuracies.

    Raises TrainingError if the loss is not a number.
    """
    accuracy, loss = accuracy_and_loss(model, examples)
    if not math.isfinite(loss):  # after the last step no batch's loss would show it
        raise TrainingError(f"the loss on dev became {loss}; {DIVERGED}")
    return accuracy, -loss


def own_score(model: LabelModel, examples: list[Example]) -> float:
    """The task's own metric on the examples: accuracy, F1 or Matthews correlation."""
    return task_score(predict(model, examples).numpy(), labels_of(examples), model.task.labels, model.task)


def loss_of(model: LabelModel, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy of a batch, to take the gradient of.

    With `runtime.gradient_checkpointing` only what goes into each layer is kept, and the rest is computed again.
    """
    with recomputed(model.model) if model.runtime.gradient_checkpointing else nullcontext():
        return cross_entropy(model.logits(batch), batch.labels, reduction=reduction)


def loss_gradient(model: LabelModel, examples: list[Example]) -> Tensor:
    """Mean cross-entropy of the examples; leaves its gradient in `.grad` of whatever is trained.

    Batches of similar length at a time; the sum over batches is the full-batch gradient exactly as
    defined, up to the order of float32 additions.  The loss, float64, isn't read from the device.
    """
    model.model.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    for batch in by_length(examples, model.runtime.batch_tokens):
        inputs = model.batch([examples[index] for index in batch])
        loss = loss_of(model, inputs, "sum") / len(examples)
        loss.backward()
        total = total + wide(loss)
    for weight in model.parameters().values():
        if weight.requires_grad and weight.grad is None:  # no part of the loss
            weight.grad = torch.zeros_like(weight)
    return total


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
