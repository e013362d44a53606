"""The words that each position of a model sees, measured on it: those after it, and the padding beside a text.

Whatever a model raises at such a short text comes through.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS, PADS = 12, 6
# relative to the largest value of a state: float32 in another order of sums is off by about 1e-6
ALIKE = 1e-3


def sees_later_words(model: "PreTrainedModel") -> bool:
    """True if other words in the second half of a text change the model's output for the first half."""
    words, others = _some_words(model), _some_words(model, before=TOKENS)
    half = TOKENS // 2
    changed = torch.cat([words[:half], others[half:]])
    return _differ(_states(model, words)[:half], _states(model, changed)[:half])


def sees_padding(model: "PreTrainedModel") -> bool:
    """True if the model's output for a text depends on the padding behind it, although that is masked."""
    words = _some_words(model)
    padding = getattr(model.config, "pad_token_id", None) or 0
    padded = torch.cat([words, words.new_full((PADS,), padding)])
    alone = _states(model, words)
    return _differ(alone, _states(model, padded, PADS)[: len(alone)])


def _some_words(model: "PreTrainedModel", before: int = 0) -> Tensor:
    """TOKENS ids from the end of the vocabulary, without that of padding, and `before` of them left out; shape (TOKENS,)."""
    vocabulary = range(len(model.get_input_embeddings().weight))
    padding = getattr(model.config, "pad_token_id", None)
    words = [word for word in vocabulary[-3 * TOKENS :] if word != padding]
    return torch.tensor(words[len(words) - before - TOKENS :][:TOKENS])


@torch.no_grad()
def _states(model: "PreTrainedModel", words: Tensor, masked: int = 0) -> Tensor:
    """The last hidden state of each position, shape (positions, width); the last `masked` words are masked."""
    mask = torch.ones_like(words)
    mask[len(words) - masked :] = 0
    return model.base_model(input_ids=words[None], attention_mask=mask[None]).last_hidden_state[0]


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > ALIKE * one.abs().max())
