"""LabelModel: a pretrained model as a classifier, whatever its mode of reading labels."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from skill_grafting.grafting.region import named_weights
from skill_grafting.models.anatomy import ModelSpec
from skill_grafting.models.loading import load_model, load_tokenizer, read_tensors
from skill_grafting.models.probing import most_tokens
from skill_grafting.support.errors import ModelError
from stages.text.models.batching import Batch
from stages.text.models.encoding import Example, encode, label_word_ids
from stages.text.models.visibility import Reader, padding_of
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import ModelParams
from stages.text.tasks.tasks import TaskSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LabelModel:
    """Gives logits over the labels of a task, shape (B, labels), for a batch of examples.

    standard: those of the stock sequence-classification class.  prompt and autoregressive: those of
    the label words at the prompt's position; the hidden states are narrowed to that position before
    the vocabulary head, which therefore runs on one position an example instead of all, and for these words alone (see Reader).
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        task: TaskSpec,
        mode: str,
        max_length: int,
        runtime: Runtime,
    ) -> None:
        self.model, self.tokenizer, self.task, self.mode = model.to(runtime.device), tokenizer, task, mode
        self.max_length, self.runtime = max_length, runtime
        self._reader = Reader(self.model, mode, tokenizer.pad_token_id)
        prompt, self._word_ids = task.prompt_for(mode), None
        if prompt:
            self._word_ids = torch.tensor(label_word_ids(prompt, task.labels, tokenizer), device=runtime.device)

    @classmethod
    def load(
        cls,
        folder: Path,
        task: TaskSpec,
        settings: ModelParams,
        runtime: Runtime,
        dropout: float | None = None,
    ) -> "LabelModel":
        """The model of a folder for a task, by the `model` section; raises ModelError."""
        tokenizer = load_tokenizer(folder)
        if prompt := task.prompt_for(settings.mode):
            try:  # fails early
                label_word_ids(prompt, task.labels, tokenizer)
            except ModelError as problem:
                raise ModelError(f"task {task.name}: {problem}") from None
        model = load_model(folder, settings.mode, task.labels, dropout)
        if padding_of(model) is None and (settings.mode != "standard" or model.missing_tensors):
            # a new head may learn where its texts end; one that is trained reads them where it learned to
            model.config.pad_token_id = model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return cls(model, tokenizer, task, settings.mode, settings.max_length, runtime)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by name, live."""
        return named_weights(self.model)

    def pretrained_names(self, anatomy: ModelSpec) -> list[str]:
        """Names of the parameters that have pretrained values: a new head has none, and with one there is no vocabulary head."""
        parameters = self.parameters()
        return [name for name in anatomy.pretrained if name in parameters]

    def train_only(self, names: set[str]) -> dict[str, Tensor]:
        """Let gradients flow to these parameters alone; gives them, live, in the model's order."""
        return train_only(self.parameters(), names)

    @torch.no_grad()
    def put(self, tensors: dict[str, Tensor]) -> None:
        """Copy values into the parameters of these names."""
        parameters = self.parameters()
        for name, values in tensors.items():
            parameters[name].copy_(values)

    def encode(self, rows: list[dict]) -> list[Example]:
        """Encode rows of the task for this model; raises ModelError where one is longer than the model can read."""
        examples = encode(rows, self.task, self.tokenizer, self.mode, self.max_length)
        longest, most = max((len(example.input_ids) for example in examples), default=0), most_tokens(self.model)
        if most is not None and longest > most:
            raise ModelError(
                f"model.max_length: {self.max_length} leaves a text of the task {self.task.name} {longest} tokens long, "
                f"and the model can read at most {most}"
            )
        return examples

    def batch(self, examples: list[Example]) -> Batch:
        """Pad examples into one batch on the model's device."""
        return self._reader.batch(examples)

    def logits(self, batch: Batch) -> Tensor:
        """Label logits, float32, shape (B, labels)."""
        self.runtime.choose_attention(batch.inputs["input_ids"].shape[1])
        with self.runtime.autocast():
            return self._reader.logits(batch, self._word_ids).float()


def train_only(parameters: dict[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """Let gradients flow to these of some live parameters alone; gives them, in order."""
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in names)
    return {name: parameter for name, parameter in parameters.items() if name in names}


def reset_to_pretrained(
    model: LabelModel, anatomy: ModelSpec, folder: Path, keep: Collection[str] = ()
) -> dict[str, Tensor]:
    """Put every pretrained value into the model, all but a new head; gives those named in `keep`, on its device."""
    pretrained = read_tensors(folder, model.pretrained_names(anatomy))
    model.put(pretrained)
    return {name: pretrained[name].to(model.runtime.device) for name in keep}
