"""Predictions for each token of completions, in batches that fit into memory; logits over the vocabulary are never kept.

Each token is predicted with all of the reference before it (teacher forcing), which also tells what greedy decoding writes: it
writes the reference exactly if the most probable token is that of the reference at every place.  By induction: as long as
it was at all places before, decoding has written the reference so far, so both see the same text and choose the same token;
and at the first place where it is another, decoding writes another.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..data.batching import by_length
from ..data.encoding import Example
from ..metrics.tokens import TARGETS, TOLD
from .label_model import LabelModel

# temperatures tried in a pass, and passes, each between the neighbours of the best one before
TRIED, PASSES = 41, 2


def targets_of(examples: list[Example]) -> np.ndarray:
    """The tokens of the completions, one after the other, with their rows: records TARGETS."""
    pairs = [(row, target) for row, example in enumerate(examples) for target in example.targets]
    return np.array(pairs, TARGETS)


def predict_tokens(
    model: LabelModel, examples: list[Example], on_batch: Callable[[int], object] = lambda _: None, degrees: float = 1.0
) -> np.ndarray:
    """Records TOLD of every token of the completions in the examples' order, at a temperature.

    `on_batch` hears how many examples are done.
    """
    told: list[np.ndarray] = [np.empty(0, TOLD)] * len(examples)
    for rows, logits, targets in _batches(model, examples):
        predicted, logs = logits.argmax(1), (logits / degrees).log_softmax(1)
        records = np.empty(len(targets), TOLD)
        records["predicted"] = predicted.cpu()
        records["confidence"] = logs.gather(1, predicted[:, None])[:, 0].exp().cpu()
        records["log_probability"] = logs.gather(1, targets[:, None])[:, 0].cpu()
        ends = np.cumsum([len(examples[row].targets) for row in rows])
        for row, part in zip(rows, np.split(records, ends[:-1]), strict=True):
            told[row] = part
        on_batch(len(rows))
    return np.concatenate([np.empty(0, TOLD), *told])


def token_temperature(model: LabelModel, examples: list[Example], log_bounds: tuple[float, float]) -> float:
    """The temperature at which the completions have the lowest mean cross-entropy, to half a percent.

    The loss has a single minimum, as it is convex in 1 / temperature, so it lies between the neighbours of the best one tried.
    """
    low, high = log_bounds
    for _ in range(PASSES):
        powers, losses = torch.linspace(low, high, TRIED), torch.zeros(TRIED, dtype=torch.float64)
        for _, logits, targets in _batches(model, examples):
            for place, degrees in enumerate(powers.exp().tolist()):
                losses[place] += float(torch.nn.functional.cross_entropy(logits / degrees, targets, reduction="sum"))
        best = int(losses.argmin())
        low, high = (float(powers[place]) for place in (max(best - 1, 0), min(best + 1, TRIED - 1)))
    return float(powers[best].exp())


@torch.inference_mode()
def _batches(model: LabelModel, examples: list[Example]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Places of a batch's examples, logits (T, vocabulary) and tokens of the reference (T,)."""
    model.model.eval()
    for rows in by_length(examples, model.runtime.batch_tokens):
        batch = model.batch([examples[row] for row in rows])
        yield rows, model.logits(batch), batch.labels
