"""What a text may be to a model: its longest one, its tokens, and that of padding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.nn import Embedding

from ..errors import ModelError
from .probing import run_of, vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# of a model without a limit of its own
MOST_TOKENS = 512


def most_tokens(model: "PreTrainedModel") -> int | None:
    """Tokens of the longest input that a model has learned positions for; None where it learned none, as with rotary ones."""
    ran = {*run_of(model).order}  # not so the positions in the images that a model may see, too
    tables = {name: part for name, part in model.named_modules() if isinstance(part, Embedding) and name in ran}
    own_names = ((name.rpartition(".")[2], part) for name, part in tables.items())
    learned = [part for name, part in own_names if "position" in name or name == "wpe"]
    if not learned:
        return None
    padding = learned[0].padding_idx  # RoBERTa and its kin count from behind it
    most = getattr(model.config.get_text_config(), "max_position_embeddings", learned[0].num_embeddings)  # LED has none
    return most - (0 if padding is None else padding + 1)


def longest_text(tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> int:
    """The tokens that a text may have by its tokenizer and by what the model can read; at most MOST_TOKENS."""
    return min(tokenizer.model_max_length, MOST_TOKENS, most_tokens(model) or MOST_TOKENS)


def require_embeddings(name: str, model: "PreTrainedModel", tokens: int) -> None:
    """Raise ModelError unless a model has an embedding for each of its tokenizer's tokens."""
    try:
        words = vocabulary_size(model)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    if tokens > words:
        raise ModelError(f"{name}: its tokenizer has {tokens} tokens, but the model only {words}")


def padding_of(model: "PreTrainedModel") -> int | None:
    """The token that a model's config has for padding, by which a causal classifier finds the end of a text: None, the last token."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    return padding if padding is not None and 0 <= padding < vocabulary_size(model) else None


@contextmanager
def padded_with(model: "PreTrainedModel", padding: int) -> Iterator[None]:
    """The model with this padding token in its config if it has none of its own."""
    configs = [model.config, model.config.get_text_config()] if padding_of(model) is None else []
    before = [getattr(config, "pad_token_id", None) for config in configs]
    for config in configs:
        config.pad_token_id = padding
    try:
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            config.pad_token_id = value
