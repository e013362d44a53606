"""A GGUF file, read by transformers and saved in float32 as an ordinary Hugging Face model folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from skill_grafting.models.loading import FROM_FOLDER, quiet_transformers
from skill_grafting.support.errors import ModelError, one_line
from skill_grafting.support.writing import replacing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def unpack_gguf(file: Path, folder: Path) -> None:
    """Write the causal model in a GGUF file as a folder: config.json, float32 model.safetensors, tokenizer.

    Raises ModelError if the file is missing or damaged, or holds what transformers doesn't read whole; then `folder` is as before.
    """
    if not file.is_file():
        raise ModelError(f"{file}: no such file")
    quiet_transformers()
    try:
        model, tokenizer = _read(file)
    except (ModelError, ModuleNotFoundError):  # which is no fault of the file's
        raise
    except Exception as problem:  # the readers raise whatever their parts run into
        raise ModelError(
            f"{file}: damaged, or not a GGUF file that transformers reads ({one_line(problem)}); get the file again, "
            "or take an ordinary folder (model.source=hub or model.source=local)"
        ) from problem
    with replacing(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def _read(file: Path) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader = GGUFReader(file)
    scaling = [field for key, field in reader.fields.items() if key.endswith(".rope.scaling.type")]
    if any(field.contents() != "none" for field in scaling):
        raise ModelError(f"{file}: has scaled rotary embeddings, which transformers doesn't read from a GGUF file")
    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, **FROM_FOLDER}
    model, report = AutoModelForCausalLM.from_pretrained(**place, dtype="float32", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report[kind])):
            raise ModelError(f"{file}: damaged: {kind.replace('_keys', '')} tensors, for instance {names[0]}")
    if len(reader.tensors) > (most := len([*model.parameters()])):
        raise ModelError(f"{file}: holds {len(reader.tensors)} tensors, of which its model reads only {most}")
    tokenizer = AutoTokenizer.from_pretrained(**place)
    tokenizer.model_max_length = model.config.max_position_embeddings
    # the weights are whole by now, and a config that says otherwise would not be saved
    model.hf_quantizer = None
    del model.config.quantization_config
    return model, tokenizer
