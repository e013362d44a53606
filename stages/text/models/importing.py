"""A pretrained model, written as the folder that every stage reads: without a task head, its tensors under the names of its class."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skill_grafting.checkpoints.comparing import FLOATS, not_finite, packed
from skill_grafting.checkpoints.files import Checkpoint, Named
from skill_grafting.checkpoints.folders import commit_of
from skill_grafting.checkpoints.layouts import require_sizes
from skill_grafting.grafting.region import named_weights
from skill_grafting.models.anatomy import FILE, ModelSpec
from skill_grafting.models.loading import CLASSES, MADE_ANEW, POOLERS, load_config, load_model, load_tokenizer
from skill_grafting.models.probing import TOKENS, some_words, vocabulary_size, without_cache
from skill_grafting.support.errors import ModelError, printable
from skill_grafting.support.fields import HEAD, LM_HEAD
from skill_grafting.support.formatting import listed
from skill_grafting.support.io import write_json
from stages.text.models.structure import anatomy_of
from stages.text.models.visibility import Reader, differ
from stages.text.tasks.settings import ModelParams

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# What a class may have no use for.
UNUSED = {
    "a head of its pretraining": r"(cls|lm_head|lm_loss|embed_out|pred_layer|decoder|(\w+_)?predictions|generator_\w+|vocab_\w+)\.",
    "a pooler": POOLERS,
    "tables that are made anew": MADE_ANEW,
}
# No model the pipeline can train on one machine is larger; one file keeps names in one place.
ONE_SHARD = "1TB"


def import_model(source: Path, settings: ModelParams, folder: Path) -> ModelSpec:
    """Write the model of `source` to `folder`, without a task head, and describe it.

    Says so if it had a task head of its own, or other parts that this class doesn't read, or lacked a pooler.
    Raises ModelError if it lacks what the mode needs, such as a masked-LM head for prompts, or can't do what the mode asks for.
    """
    origin = settings.root if settings.source == "local" else settings.name
    try:
        checkpoint = Checkpoint.open(str(source), tokenizer=False)
        require_sizes(checkpoint)
        config, tokenizer = load_config(source), load_tokenizer(source)
        _require_fit(settings, config, tokenizer)
        model = load_model(source, settings.mode, new_head=True)
        _require_numbers(checkpoint, model)
    except ModelError as error:
        raise ModelError(str(error).replace(str(source), origin)) from error
    revision = commit_of(source) or settings.revision
    anatomy = anatomy_of(model, settings.mode, settings.name, settings.source, revision)
    _require_whole(settings, model, anatomy.groups, len(tokenizer))
    require_readable(settings.name, model, settings.mode, tokenizer.pad_token_id)
    head = anatomy.names([HEAD])
    if {*head} - {*model.missing_tensors}:
        print(f"{settings.name}: its own classification head is dropped; each task gets a new one")
    if model.unused_tensors:
        print(f"{settings.name}: has what model.mode={settings.mode} doesn't read: {_unused(model.unused_tensors)}")
    write_json(folder / FILE, asdict(anatomy))
    save_model(model, tokenizer, folder, leave_out=head)
    return anatomy


def save_model(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path, leave_out: Iterable[str] = ()
) -> None:
    """Write an ordinary folder, tensors under the names of `named_weights`.

    `leave_out` names tensors that aren't written, such as an untrained head.
    """
    skip = {*leave_out}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in skip}
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, state_dict=state, max_shard_size=ONE_SHARD, save_original_format=False)
    tokenizer.save_pretrained(folder)


def _require_fit(settings: ModelParams, config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise ModelError if a model of this kind can't be read the way that the mode does."""
    import transformers

    kind, mode = f"{settings.name}: is a model of the kind {config.model_type}", settings.mode
    if type(config)().is_encoder_decoder:
        raise ModelError(
            f"{kind}, an encoder-decoder, of which only half would be grafted; take an encoder or a decoder"
        )
    fitting = [name for name, auto in CLASSES.items() if type(config) in getattr(transformers, auto)._model_mapping]
    if mode not in fitting:
        others = " or ".join(f"model.mode={name}" for name in fitting) or "another model"
        raise ModelError(f"{kind}, which can't be read with model.mode={mode}; use {others}")
    if mode == "prompt" and tokenizer.mask_token is None:
        raise ModelError(
            f"{settings.name}: its tokenizer has no mask token, so it can't be prompted; use model.mode=autoregressive or standard"
        )


def _require_numbers(checkpoint: Checkpoint, model: "PreTrainedModel") -> None:
    """Raise ModelError if weights are of a type that can't be grafted, or have values that are no numbers."""
    weights = named_weights(model)
    named = Named.of(checkpoint, weights, model.base_model_prefix)
    if narrow := packed(named):
        types, which = named.types - {*FLOATS}, f"only those in {', '.join(FLOATS)} can be fine-tuned and grafted"
        raise ModelError(f"{checkpoint.title}: has weights in {', '.join(sorted(types))} ({listed(narrow)}); {which}")
    if problems := not_finite(named, weights):
        raise ModelError("; ".join(problems))


def _unused(names: list[str]) -> str:
    """Tensors in words: the known ones by what they are, the first of all others by name."""
    known = {name: words for name in names for words, pattern in UNUSED.items() if re.match(pattern, name)}
    others = [listed([name for name in names if name not in known])]
    return printable(", ".join([*dict.fromkeys(known.values()), *filter(None, others)]))


def _require_whole(settings: ModelParams, model: "PreTrainedModel", groups: dict[str, str], tokens: int) -> None:
    """Raise ModelError if the weights lack more than what is new with each task, or tokens have no embedding."""
    lacking = {name: groups.get(name) for name in model.missing_tensors}
    if missing := [name for name, group in lacking.items() if group != HEAD]:
        part = "a language-model head" if groups.get(missing[0]) == LM_HEAD else "all parameters of this class"
        raise ModelError(
            f"{settings.name}: the checkpoint doesn't have {part} (for instance {missing[0]}), which model.mode={settings.mode} needs"
        )
    if inside := [name for name in lacking if name.startswith(f"{model.base_model_prefix}.")]:
        print(
            f"{settings.name}: the checkpoint doesn't have {', '.join(inside)}, which are part of each task's new head"
        )
    require_embeddings(settings.name, model, tokens)


def require_readable(name: str, model: "PreTrainedModel", mode: str, pad_id: int) -> None:
    """Raise ModelError if a model can't read texts in batches, or sees a next word that its mode has it predict."""
    require_causal(name, model, mode)
    try:
        Reader(model, mode, pad_id)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error


def require_causal(name: str, model: "PreTrainedModel", mode: str, setting: str = "model.mode=") -> None:
    """Raise ModelError if a model sees a next word that its mode has it predict; `setting` is what users write before a mode."""
    if mode == "autoregressive" and sees_later_words(model):
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
    return differ(first, second)


def require_embeddings(name: str, model: "PreTrainedModel", tokens: int) -> None:
    """Raise ModelError unless a model has an embedding for each of its tokenizer's tokens."""
    try:
        words = vocabulary_size(model)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    if tokens > words:
        raise ModelError(f"{name}: its tokenizer has {tokens} tokens, but the model only {words}")
