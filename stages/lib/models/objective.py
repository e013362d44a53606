"""The training loss over many examples, and its gradient, in batches that fit into memory."""

import torch

from stages.lib.models.label_model import LabelModel
from stages.lib.text.batching import by_length
from stages.lib.text.encoding import Example


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
