"""A short text run through a model, to see which of its modules run, in which order, and which one gives the hidden states."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import Embedding, Module, Parameter

from ..support.errors import ModelError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS = 12


@dataclass(frozen=True)
class Run:
    """Names of the modules that ran, in the order of their first call, and that of the one which gave the hidden states."""

    order: tuple[str, ...]
    backbone: str | None


_RUNS: WeakKeyDictionary[Module, Run] = WeakKeyDictionary()


def run_of(model: "PreTrainedModel") -> Run:
    """What runs on a short text, measured once for each model, on a copy without values, which takes no memory of its size.

    A model itself may change where it runs: RWKV divides its weights.  Raises ModelError if the copy can't be run.
    """
    if model not in _RUNS:
        _RUNS[model] = _run_without_values(without_values(model)) or _run_on_values(with_zeros(model))
    return _RUNS[model]


def without_values(model: "PreTrainedModel") -> "PreTrainedModel":
    """A copy of a model whose tensors are on the device `meta`."""
    return _copied(model, lambda tensor: torch.empty_like(tensor, device="meta"))


def _copied(model: "PreTrainedModel", made: Callable[[Tensor], Tensor]) -> "PreTrainedModel":
    """A copy of a model with what is made of each parameter and buffer in its place, so that no values are copied."""
    others = {id(one): made(one) for one in model.buffers()}
    others |= {id(one): Parameter(made(one), one.requires_grad) for one in model.parameters()}
    return copy.deepcopy(model, others)


def _run_without_values(model: "PreTrainedModel") -> Run | None:
    """What runs on the device `meta`; None of a model that looks at values on its way, as routers do.

    Decoders look at the values of a mask, or of the one that they make, and some not at those of a tensor that torch takes for traced.
    """
    for masked in (False, True):
        with suppress(Exception):  # models raise what they like
            return _run(model, masked)
    with suppress(Exception), _traced():
        return _run(model)
    return None


@contextmanager
def _traced() -> Iterator[None]:
    """Tensors without values as torch's tracers have them; where they can't stand for one, torch logs an error besides raising it."""
    from torch._subclasses import fake_tensor

    log = logging.getLogger(fake_tensor.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.setLevel(level)


def _run_on_values(model: "PreTrainedModel") -> Run:
    try:
        return _run(model)
    except ModelError:
        raise
    except Exception as error:  # as above
        what = "an image" if model.main_input_name == "pixel_values" else f"a text of {TOKENS} tokens"
        raise ModelError(f"can't be run on {what}: {one_line(error)}") from error


def with_zeros(model: "PreTrainedModel") -> "PreTrainedModel":
    """A copy of a model that has zeros: all tensors are the same memory, of which none is taken before it is written to."""
    tensors = (*model.parameters(), *model.buffers())
    zeros = np.zeros(max(one.numel() * one.itemsize for one in tensors), dtype=np.uint8)

    def made(tensor: Tensor) -> Tensor:
        part = torch.from_numpy(zeros[: tensor.numel() * tensor.itemsize])
        return part.view(tensor.dtype).view(tensor.shape)

    return _copied(model, made)


def without_cache(model: "PreTrainedModel") -> dict[str, bool]:
    """The option of a decoder that keeps nothing to write on from."""
    return {"use_cache": False} if hasattr(model.config.get_text_config(), "use_cache") else {}


def some_words(model: "PreTrainedModel") -> Tensor:
    """Ids from the end of the vocabulary without that of padding, those of a small one again and again; shape (TOKENS,).

    An encoder-decoder's end with its end token, by which its classifiers find the place of their answer.
    """
    config, vocabulary = model.config, range(vocabulary_size(model))
    end = getattr(config, "eos_token_id", None) if config.is_encoder_decoder else None
    words = [word for word in vocabulary[-TOKENS - 2 :] if word not in (getattr(config, "pad_token_id", None), end)]
    ids = [words[place % len(words)] for place in range(-TOKENS, 0)]
    return torch.tensor([*ids[:-1], end] if isinstance(end, int) else ids, device=model.device)


def probe(model: "PreTrainedModel") -> dict[str, Tensor]:
    """A short input of the kind that a model takes: words, for an encoder-decoder on both sides, or an image."""
    if model.main_input_name == "pixel_values":
        size = getattr(model.config, "image_size", None) or 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = 1, getattr(model.config, "num_channels", 3), height, width
        return {"pixel_values": torch.zeros(shape, device=model.device, dtype=model.dtype)}
    words = {"input_ids": some_words(model)[None]}
    return words | ({"decoder_input_ids": words["input_ids"]} if model.config.is_encoder_decoder else {})


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


def vocabulary_size(model: "PreTrainedModel") -> int:
    """Number of the tokens that a model has an embedding for; raises ModelError if it has no table of them."""
    try:
        return len(model.get_input_embeddings().weight)
    except (NotImplementedError, AttributeError):
        kind = model.config.model_type
        raise ModelError(
            f"is a model of the kind {kind}, which has no embeddings of tokens, so no text can be read with it"
        ) from None


@torch.no_grad()
def _run(model: "PreTrainedModel", masked: bool = False) -> Run:
    called: dict[str, None] = {}
    backbones: list[str] = []

    def enters(name: str) -> None:
        called.setdefault(name)

    def leaves(name: str, output: object) -> None:
        if name and isinstance(getattr(output, "last_hidden_state", None), Tensor):
            backbones.append(name)

    hooks = []
    for name, part in model.named_modules():
        hooks.append(part.register_forward_pre_hook(lambda _module, _inputs, name=name: enters(name)))
        hooks.append(part.register_forward_hook(lambda _module, _inputs, output, name=name: leaves(name, output)))
    try:
        with torch.random.fork_rng(devices=[]):
            inputs = probe(model)
            mask = {"attention_mask": torch.ones_like(inputs["input_ids"])} if masked else {}
            model(**inputs, **mask, return_dict=True, **without_cache(model))
    finally:
        for hook in hooks:
            hook.remove()
    return Run(tuple(called), backbones[-1] if backbones else None)
