"""Whether a model sees later words, or the padding beside a text; measured on the model itself."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ModelError, one_line
from .anatomy import CLASSES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS, PADS = 12, 6
# relative to the largest value of a state: float32 in another order of sums is off by about 1e-6
ALIKE = 1e-3
SEEN = "its output for a text depends on the padding in the batch, so scores change with"


def require_readable(name: str, model: "PreTrainedModel", mode: str, setting: str = "model.mode=") -> bool:
    """Raise ModelError if a model can't run a short text, or sees the word that its mode predicts; returns whether it sees padding.

    `setting` is what users write before a mode.  In bfloat16, whose rounding hides it, the answer is False.
    """
    causal = CLASSES[mode] == CLASSES["autoregressive"]
    try:
        early, padded = causal and sees_later_words(model), sees_padding(model)
    # models raise any kind of error for texts that they can't run
    except Exception as error:
        raise ModelError(f"{name}: can't be run on a text of {TOKENS} tokens: {one_line(error)}") from error
    if early:
        raise ModelError(
            f"{name}: is a model of the kind {model.config.model_type} that sees the words after a position too, so there is "
            f"no next one to predict with {setting}{mode}; use {setting}prompt or {setting}standard"
        )
    return padded and model.dtype == torch.float32


def sees_later_words(model: "PreTrainedModel") -> bool:
    """True if another word all along the second half of a text changes the model's output for the first half."""
    words, half = _some_words(model), TOKENS // 2
    changed = torch.cat([words[:half], words[:1].expand(TOKENS - half)])
    return _differ(_states(model, words)[:half], _states(model, changed)[:half])


def sees_padding(model: "PreTrainedModel") -> bool:
    """True if the model's output for a text depends on the padding behind it, although that is masked."""
    words = _some_words(model)
    padding = getattr(model.config, "pad_token_id", None) or 0
    padded = torch.cat([words, words.new_full((PADS,), padding)])
    alone = _states(model, words)
    return _differ(alone, _states(model, padded, PADS)[: len(alone)])


def _some_words(model: "PreTrainedModel") -> Tensor:
    """Ids from the end of the vocabulary without that of padding, those of a small one again and again; shape (TOKENS,)."""
    vocabulary = range(len(model.get_input_embeddings().weight))
    padding = getattr(model.config, "pad_token_id", None)
    words = [word for word in vocabulary[-TOKENS - 1 :] if word != padding]
    return torch.tensor([words[place % len(words)] for place in range(-TOKENS, 0)], device=model.device)


@torch.no_grad()
def _states(model: "PreTrainedModel", words: Tensor, masked: int = 0) -> Tensor:
    """The last hidden state of each position, shape (positions, width); the last `masked` words are masked."""
    mask = torch.ones_like(words)
    mask[len(words) - masked :] = 0
    return model.base_model(input_ids=words[None], attention_mask=mask[None]).last_hidden_state[0]


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > ALIKE * one.abs().max())
