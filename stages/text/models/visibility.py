"""What a model reads, measured on short texts: what stands beside a text in its batch, its longest text, and its token of padding."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import linear

from skill_grafting.models.probing import run_of, some_words, vocabulary_size, without_cache
from skill_grafting.support.errors import ModelError, one_line
from stages.text.models.batching import Batch, collate
from stages.text.models.encoding import Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

# tokens of the shorter one of two texts
SHORT = 7
# relative to the largest logit: float32 in another order of sums is off by less than 1e-6, narrower types by a few hundredths
ALIKE, ROUGHLY_ALIKE = 1e-4, 0.1

# by mode, measured once for each model: whether batches are padded on the left, and whether the head computes some words alone
_KNOWN: WeakKeyDictionary[Module, dict[str, tuple[bool, bool]]] = WeakKeyDictionary()


class PositionSelector:
    """A forward hook that leaves of the hidden states those that a batch is read at, and all while there is no batch.

    It does not know the model, which would else live on in a cycle, weights and all, until Python looks for cycles.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def __call__(self, _module: Module, _inputs: object, output: "BaseModelOutput") -> "BaseModelOutput":
        """The output of the backbone, narrowed."""
        if self.batch is not None:
            output.last_hidden_state = output.last_hidden_state[self.batch.rows, self.batch.positions].unsqueeze(1)
        return output


@contextmanager
def _rows_alone(projection: Linear, words: Tensor) -> Iterator[None]:
    """For its time a linear layer has these rows alone, whose gradients go to its whole weight.

    Their logits are computed in the type of the weights, which costs nothing for a few words: in bfloat16 two of them would often be one number.
    """

    def narrow(hidden: Tensor) -> Tensor:
        bias = None if projection.bias is None else projection.bias.index_select(0, words)
        with torch.autocast(hidden.device.type, enabled=False):
            return linear(hidden.to(projection.weight.dtype), projection.weight.index_select(0, words), bias)

    projection.forward = narrow
    try:
        yield
    finally:
        del projection.forward  # that of its class again


class Reader:
    """The logits of a model at the positions of a batch, and on which side its batches are padded.

    The vocabulary head runs at these positions alone, and of the words that are asked for alone where measurement says that this
    gives their logits; where something behind it needs the whole vocabulary, it computes that.  Raises ModelError if a text is
    read otherwise in a batch than by itself.
    """

    def __init__(self, model: "PreTrainedModel", mode: str, pad_id: int) -> None:
        self.model, self.mode, self.pad_id = model, mode, pad_id
        self._selector = PositionSelector()
        self._options = without_cache(model)
        self._takes = inspect.signature(model.forward).parameters
        if mode != "standard" and (backbone := run_of(model).backbone):
            model.get_submodule(backbone).register_forward_hook(self._selector)
        known = _KNOWN.setdefault(model, {})
        if mode not in known:
            known[mode] = self._measure()
        self.left, self._narrow = known[mode]

    def batch(self, examples: list[Example]) -> Batch:
        """Pad examples into one batch on the model's device, without segments for a model that has no use for them."""
        batch = collate(examples, self._filler(examples), self.model.device, self.left)
        inputs = {name: values for name, values in batch.inputs.items() if name in self._takes}
        return replace(batch, inputs=inputs)

    def logits(self, batch: Batch, words: Tensor | None = None) -> Tensor:
        """Logits of the class, (B, labels), or at each position that is read over the vocabulary or of these words, (B, words)."""
        if words is None:
            return self._run(batch)
        if self._narrow:
            with _rows_alone(self.model.get_output_embeddings(), words):
                return self._run(batch)
        return self._run(batch).index_select(1, words)

    def _filler(self, examples: list[Example]) -> int:
        """What texts are filled up with: the model's own padding, or, where it has none, a token that none of them ends with."""
        own, last = padding_of(self.model), {example.input_ids[-1] for example in examples}
        free = (token for token in (self.pad_id, *range(len(last) + 1)) if token not in last)
        return next(free) if own is None else own

    def _run(self, batch: Batch) -> Tensor:
        self._selector.batch = batch
        try:
            with padded_with(self.model, batch.pad_id):
                logits = self.model(**batch.inputs, **self._options).logits
        finally:
            self._selector.batch = None  # the same model may be read by another task next
        return logits if self.mode == "standard" else logits[:, 0]

    def _measure(self) -> tuple[bool, bool]:
        """Whether texts have to be padded on the left, and whether the vocabulary head computes some words alone.

        Measured is where a batch of two says what each says alone, by the plain class.
        """
        self.model.eval()  # as for all that is predicted: dropout would say something else each time
        words = some_words(self.model)
        ids = [words.tolist(), words[-SHORT:].tolist()]
        examples = [Example(part, [0] * len(part), 0, len(part) - 1 - (self.mode == "prompt")) for part in ids]
        try:
            alone = torch.cat([self._plain(example) for example in examples])
            for self.left in (False, True):
                if not differ(alone, self._said(examples)):
                    return self.left, self._narrows(examples, alone, words.unique())
        except Exception as error:  # models raise what they like
            raise ModelError(f"can't be run on two texts in a batch: {one_line(error)}") from error
        raise ModelError(
            f"is a model of the kind {self.model.config.model_type} that says something else of a text beside others in a batch, "
            "padded on whichever side, than of the text alone, so no score of it would hold; take another kind of model"
        )

    def _narrows(self, examples: list[Example], alone: Tensor, words: Tensor) -> bool:
        """True if the head, reduced to the rows of some words, gives their logits as the plain class does."""
        if self.mode == "standard" or len(words) == alone.shape[1]:
            return False
        self._narrow = True
        try:
            return isinstance(self.model.get_output_embeddings(), Linear) and not differ(
                alone.index_select(1, words), self._said(examples, words)
            )
        except Exception:  # what is behind the head needs the whole vocabulary, such as a bias of its own
            return False

    @torch.no_grad()
    def _plain(self, example: Example) -> Tensor:
        inputs = {"input_ids": example.input_ids, "token_type_ids": example.token_type_ids}
        tensors = {
            name: torch.tensor([ids], device=self.model.device) for name, ids in inputs.items() if name in self._takes
        }
        mask = torch.ones_like(tensors["input_ids"])
        logits = self.model(**tensors, attention_mask=mask, **self._options).logits
        return logits if self.mode == "standard" else logits[:, example.position]

    @torch.no_grad()
    def _said(self, examples: list[Example], words: Tensor | None = None) -> Tensor:
        return self.logits(self.batch(examples), words)


def differ(one: Tensor, other: Tensor) -> bool:
    most = ALIKE if one.dtype == torch.float32 else ROUGHLY_ALIKE
    return one.shape != other.shape or bool((one - other).abs().max() > most * one.abs().max())


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
