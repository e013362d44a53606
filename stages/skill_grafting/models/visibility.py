"""What a model reads, measured on short texts: the words after a position, and what stands beside a text in its batch."""

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module

from ..data.batching import Batch, collate
from ..data.encoding import Example
from ..errors import ModelError, one_line
from .anatomy import CLASSES
from .probing import TOKENS, run_of, some_words, without_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

# tokens of the shorter one of two texts
SHORT = 7
# relative to the largest logit: float32 in another order of sums is off by less than 1e-6, narrower types by a few hundredths
ALIKE, ROUGHLY_ALIKE = 1e-4, 0.1

_LEFT: WeakKeyDictionary[Module, dict[str, bool]] = WeakKeyDictionary()


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


class Reader:
    """The logits of a model at the positions of a batch, and on which side its batches are padded.

    The vocabulary head runs at these positions alone.  Raises ModelError if a text is read otherwise in a batch than by itself.
    """

    def __init__(self, model: "PreTrainedModel", mode: str, pad_id: int) -> None:
        self.model, self.mode, self.pad_id = model, mode, pad_id
        self._selector = PositionSelector()
        self._options = without_cache(model)
        self._takes = inspect.signature(model.forward).parameters
        model.config.pad_token_id = pad_id
        if mode != "standard" and (backbone := run_of(model).backbone):
            model.get_submodule(backbone).register_forward_hook(self._selector)
        known = _LEFT.setdefault(model, {})
        if mode not in known:
            known[mode] = self._measure_side()
        self.left = known[mode]

    def batch(self, examples: list[Example]) -> Batch:
        """Pad examples into one batch on the model's device, without segments for a model that has no use for them."""
        batch = collate(examples, self.pad_id, self.model.device, self.left)
        inputs = {name: values for name, values in batch.inputs.items() if name in self._takes}
        return replace(batch, inputs=inputs)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the class, (B, labels), or over the vocabulary at each position that is read."""
        self._selector.batch = batch
        try:
            logits = self.model(**batch.inputs, **self._options).logits
        finally:
            self._selector.batch = None  # the same model may be read by another task next
        return logits if self.mode == "standard" else logits[:, 0]

    def _measure_side(self) -> bool:
        """True if texts have to be padded on the left: where a batch of two says what each says alone, by the plain class."""
        self.model.eval()  # as for all that is predicted: dropout would say something else each time
        words = some_words(self.model).tolist()
        ids = [words, words[:SHORT]]
        examples = [Example(part, [0] * len(part), 0, len(part) - 1 - (self.mode == "prompt")) for part in ids]
        try:
            alone = torch.cat([self._plain(example) for example in examples])
            for self.left in (False, True):
                if not _differ(alone, self._said(examples)):
                    return self.left
        except Exception as error:  # models raise what they like
            raise ModelError(f"can't be run on two texts in a batch: {one_line(error)}") from error
        raise ModelError(
            f"is a model of the kind {self.model.config.model_type} that says something else of a text beside others in a batch, "
            "padded on whichever side, than of the text alone, so no score of it would hold; take another kind of model"
        )

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
    def _said(self, examples: list[Example]) -> Tensor:
        return self.logits(self.batch(examples))


def require_readable(name: str, model: "PreTrainedModel", mode: str, pad_id: int) -> None:
    """Raise ModelError if a model can't read texts in batches, or sees a next word that its mode has it predict."""
    require_causal(name, model, mode)
    before = getattr(model.config, "pad_token_id", None)
    try:
        Reader(model, mode, pad_id)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    finally:
        model.config.pad_token_id = before


def require_causal(name: str, model: "PreTrainedModel", mode: str, setting: str = "model.mode=") -> None:
    """Raise ModelError if a model sees a next word that its mode has it predict; `setting` is what users write before a mode."""
    if CLASSES[mode] == CLASSES["autoregressive"] and sees_later_words(model):
        from transformers import MODEL_FOR_MASKED_LM_MAPPING

        prompt = f"{setting}prompt or " * (type(model.config) in MODEL_FOR_MASKED_LM_MAPPING)
        raise ModelError(
            f"{name}: is a model of the kind {model.config.model_type} that sees the words after a position too, so there is "
            f"no next one to predict with {setting}{mode}; use {prompt}{setting}standard"
        )


@torch.no_grad()
def sees_later_words(model: "PreTrainedModel") -> bool:
    """True if another word all along the second half of a text changes the model's output for the first half."""
    words, half = some_words(model), TOKENS // 2
    changed = torch.cat([words[:half], words[:1].expand(TOKENS - half)])
    options = without_cache(model)
    first, second = (model(input_ids=ids[None], **options).logits[0, :half] for ids in (words, changed))
    return _differ(first, second)


def _differ(one: Tensor, other: Tensor) -> bool:
    most = ALIKE if one.dtype == torch.float32 else ROUGHLY_ALIKE
    return one.shape != other.shape or bool((one - other).abs().max() > most * one.abs().max())
