"""Passes over many examples, in batches that fit into memory: label logits, dev score, gradient of the loss."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..data.batching import by_length
from ..data.encoding import Example
from .label_model import LabelModel


@torch.inference_mode()
def predict(model: LabelModel, examples: list[Example], on_batch: Callable[[int], object] = lambda _: None) -> Tensor:
    """Label logits of every example in its order, float32 on the CPU, shape (n, labels).

    Batches hold examples of similar length; `on_batch` hears how many examples are done.
    """
    model.model.eval()
    logits = torch.empty(len(examples), len(model.task.labels))
    for batch in by_length(examples, model.runtime.batch_tokens):
        logits[batch] = model.logits(model.batch([examples[index] for index in batch])).cpu()
        on_batch(len(batch))
    return logits


def dev_score(model: LabelModel, examples: list[Example]) -> tuple[float, float]:
    """(accuracy, -mean cross-entropy) on dev: higher is better, the loss decides between equal accuracies."""
    logits = predict(model, examples)
    labels = torch.tensor([example.label for example in examples])
    accuracy = (logits.argmax(1) == labels).double().mean()
    loss = torch.nn.functional.cross_entropy(logits.double(), labels)
    return float(accuracy), -float(loss)


def loss_gradient(model: LabelModel, examples: list[Example]) -> float:
    """Mean cross-entropy of the examples; leaves its gradient in `.grad` of whatever is trained.

    Batches of similar length at a time; the sum over batches is the full-batch gradient exactly as
    defined, up to the order of float32 additions.
    """
    model.model.zero_grad(set_to_none=True)
    total = 0.0
    for batch in by_length(examples, model.runtime.batch_tokens):
        inputs = model.batch([examples[index] for index in batch])
        loss = torch.nn.functional.cross_entropy(model.logits(inputs), inputs.labels, reduction="sum") / len(examples)
        loss.backward()
        total += float(loss.detach())
    return total
