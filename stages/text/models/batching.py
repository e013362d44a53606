"""Batches of encoded examples, padded to their own longest, never to a fixed length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stages.text.models.encoding import Example

# A shuffled epoch is cut into stretches of this many batches, and sorted by length within each.
BUCKET_BATCHES = 16


@dataclass(frozen=True)
class Batch:
    """Tensors of one batch: inputs for the model, labels (B,), positions (B,) where a prompt is read, and their rows (B,).

    `pad_id` is the token that fills shorter texts up.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    positions: Tensor
    rows: Tensor
    pad_id: int


def collate(examples: Sequence[Example], pad_id: int, device: torch.device, left: bool = False) -> Batch:
    """Pad to the longest example of the batch, behind it or on the left; inputs have shape (B, longest).

    All goes to the device in one copy.
    """
    longest = max(len(example.input_ids) for example in examples)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if examples[0].token_type_ids is not None else [])]
    inputs = np.zeros((len(names), len(examples), longest), dtype=np.int64)
    inputs[0] = pad_id
    starts = [longest - len(example.input_ids) if left else 0 for example in examples]
    for row, (start, example) in enumerate(zip(starts, examples, strict=True)):
        text = slice(start, start + len(example.input_ids))
        inputs[0, row, text] = example.input_ids
        inputs[1, row, text] = 1
        if len(names) > 2:
            inputs[2, row, text] = example.token_type_ids
    read = [(example.label, starts[row] + example.position, row) for row, example in enumerate(examples)]
    whole = torch.from_numpy(np.concatenate([inputs.reshape(-1), np.array(read, dtype=np.int64).T.reshape(-1)]))
    if device.type == "cuda":
        whole = whole.pin_memory()
    padded, numbers = whole.to(device, non_blocking=True).split([inputs.size, 3 * len(read)])
    return Batch(dict(zip(names, padded.view(inputs.shape), strict=True)), *numbers.view(3, -1), pad_id)


def by_length(examples: Sequence[Example], batch_tokens: int) -> list[list[int]]:
    """Indices of all examples in batches of similar length and at most `batch_tokens` padded tokens."""
    order = sorted(range(len(examples)), key=lambda index: (len(examples[index].input_ids), index))
    batches: list[list[int]] = []
    for index in order:
        length = len(examples[index].input_ids)  # the longest so far, as lengths only grow
        if batches and (len(batches[-1]) + 1) * length <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def shuffled(
    examples: Sequence[Example], batch_size: int, generator: np.random.Generator, bucket_batches: int = BUCKET_BATCHES
) -> Iterator[list[int]]:
    """Endless random batches of `batch_size` indices, epoch by epoch, alike in length within a batch.

    Every example comes once an epoch; the last batch of an epoch may be smaller.  `bucket_batches=1`
    gives plain random batches.
    """
    while True:
        order = generator.permutation(len(examples))
        stretch = batch_size * bucket_batches
        batches = []
        for first in range(0, len(order), stretch):
            part = sorted(order[first : first + stretch].tolist(), key=lambda index: len(examples[index].input_ids))
            batches += [part[at : at + batch_size] for at in range(0, len(part), batch_size)]
        for number in generator.permutation(len(batches)):
            yield batches[number]
