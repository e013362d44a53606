"""Reading and writing of models as ordinary Hugging Face folders."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..support.errors import ModelError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# labels of the head that a model gets before a task is known, and so of the head in anatomy.json
SOME_LABELS = 2
# the classes of transformers that read labels off a model, by mode
CLASSES = {
    "standard": "AutoModelForSequenceClassification",
    "prompt": "AutoModelForMaskedLM",
    "autoregressive": "AutoModelForCausalLM",
}
WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "sentencepiece.model", "bpe.codes", "dict.txt", "emoji.json", "entity_vocab.json", "prophetnet.tokenizer", "word_shape.json",
    "word_pronunciation.json", "normalizer.json",
)  # fmt: skip
UNHEARD_OF = "\N{LATIN SMALL LETTER SHARP S}\N{SNOWMAN}qz"
# endings of settings that are dropout rates; others, such as layerdrop, drop something else
DROPOUTS = ("dropout", "pdrop", "dropout_p", "dropout_prob", "dropout_rate")
# form of a model's output: a config.json may ask for another, which nothing here reads
PLAIN = {"output_attentions": False, "output_hidden_states": False, "return_dict": True}
# a folder is meant, never a name on the hub; and code is never run
FROM_FOLDER = {"local_files_only": True, "trust_remote_code": False}
# buffers that a model computes itself, and that older checkpoints contain
MADE_ANEW = r".*(position_ids|inv_freq|masked_bias)$"
POOLERS = r"^(.*\.)?pooler\."


def load_model(
    folder: Path,
    mode: str,
    labels: list[str] | None = None,
    dropout: float | None = None,
    new_head: bool = False,
    dtype: str = "float32",
) -> "PreTrainedModel":
    """The transformers model of a folder, of the stock class that `mode` asks for, or of the class of that name, in eval mode.

    Parameters that the folder doesn't have (the head of a new task) start at random from torch's
    global generator: seed it first; the model's `missing_tensors` names them, and `unused_tensors` what it didn't read.
    So does, with `new_head`, a head in the folder of another size.  Raises ModelError if the folder can't be loaded.
    """
    import transformers

    quiet_transformers()
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: no model there (config.json is missing)")
    options: dict[str, Any] = {"dtype": dtype, **PLAIN} | (
        _label_options(labels) if has_head(mode) and (labels or mode == "standard") else {}
    )
    safely = FROM_FOLDER | {"use_safetensors": True, "ignore_mismatched_sizes": True}
    if dropout is not None:
        options |= {key: dropout for key, value in load_config(folder).to_dict().items() if is_dropout(key, value)}
    kind = getattr(transformers, CLASSES.get(mode, mode))
    try:
        model, report = kind.from_pretrained(folder, output_loading_info=True, **safely, **options)
    except Exception as error:  # transformers checks little of config.json and fails on the rest in many ways
        _require_kind(folder, kind)
        raise ModelError(f"{folder}: could not be loaded in the mode {mode}: {one_line(error)}") from error
    if report["missing_keys"]:  # with all of its tensors a folder may be called whatever its maker liked
        _require_kind(folder, kind)
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        in_head = has_head(mode) and not name.startswith(f"{model.base_model_prefix}.")
        if not (new_head and in_head):
            shapes = f"{list(stored)} in the weights and {list(wanted)} by config.json"
            raise ModelError(f"{folder}: its weights don't fit its config.json: {name} is {shapes}")
    model.missing_tensors, model.unused_tensors = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    return model.eval()


def _require_kind(folder: Path, kind: type) -> None:
    """Raise ModelError if a folder is of another kind than a class of transformers, which would load it as one without its tensors."""
    wanted = getattr(getattr(kind, "config_class", None), "model_type", "")
    if not wanted:  # one for any kind
        return
    config = load_config(folder)
    parts = [getattr(config, name, None) for name in config.sub_configs]
    if wanted not in {config.model_type, *(getattr(part, "model_type", None) for part in parts)}:
        raise ModelError(
            f"{folder}: is a model of the kind {config.model_type}, and {kind.__name__} of the kind {wanted}"
        )


def classes() -> dict[str, dict[str, str]]:
    """Mode of reading labels -> kind of model -> its class."""
    from transformers.models.auto import modeling_auto

    return {
        "standard": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "prompt": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "autoregressive": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }


def class_name(kind: str, mode: str) -> str:
    """The class of transformers by which a mode reads labels off a kind of model."""
    return classes()[mode][kind]


def has_head(mode: str) -> bool:
    """True where labels are those of a head: by the mode, or by a class beside those that modes read."""
    return mode == "standard" or mode not in CLASSES


def is_dropout(key: str, value: object) -> bool:
    """True for null, too, which stands for another one of the config; ESM's token_dropout is a switch."""
    return key.endswith(DROPOUTS) and isinstance(value, float | int | None) and not isinstance(value, bool)


def _label_options(labels: list[str] | None) -> dict[str, Any]:
    names = labels or [str(number) for number in range(SOME_LABELS)]
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def load_config(folder: Path) -> "PreTrainedConfig":
    """The config of a folder; raises ModelError if it can't be used."""
    from transformers import AutoConfig

    _require_folder(folder)
    try:
        return AutoConfig.from_pretrained(folder, **FROM_FOLDER, **PLAIN)
    except Exception as error:  # as above
        raise ModelError(f"{folder / 'config.json'}: can't be used: {one_line(error)}") from error


def _require_folder(folder: Path) -> None:
    """Raise ModelError unless there is a folder: transformers would ask the hub for one of its name, minutes where it is silent."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder; one without a padding token pads with its end token.

    Raises ModelError if it can't be loaded or has neither.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    _require_folder(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **FROM_FOLDER)
        # one without a token for unknown words fails only where it meets one; `tokenizer()` would change what is saved of it
        if backend := getattr(tokenizer, "backend_tokenizer", None):
            backend.encode(UNHEARD_OF)
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise ModelError(f"{folder}: no usable tokenizer: {one_line(error)}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(f"{folder}: no usable tokenizer: it has neither a padding nor an end token")
    return tokenizer


def read_tensors(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors of a folder that save_model wrote, without building a model.

    Raises ModelError if the checkpoint or a tensor is missing or damaged.
    """
    file = folder / WEIGHTS
    if not file.exists():
        raise ModelError(f"{file}: no such checkpoint")
    try:
        with safe_open(file, framework="pt") as stored:
            if missing := {*names} - {*stored.keys()}:
                raise ModelError(f"{file}: has no tensor {min(missing)!r}; it belongs to another model")
            return {name: stored.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ModelError(f"{file}: damaged: {error}") from error


def quiet_transformers() -> None:
    """Silence load reports and per-tensor progress bars."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
