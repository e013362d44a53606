"""A GGUF file of the Llama architecture, unpacked into an ordinary Hugging Face model folder.

transformers reads the same weights from such a file, three times slower, but won't save them, and it
splits spaces before a digit otherwise than the model's own tokenizer.  So the folder is rebuilt here, with
the names of the gguf library.  What can't be rebuilt exactly (other tokenizers, scaled rotary embeddings,
experts) is refused: nothing is guessed.  The same file always gives the same bytes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..io import replacing, write_json

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor
    from tokenizers import Tokenizer

CONTROL_TOKEN, USER_TOKEN = 3, 4


def unpack_gguf(file: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a folder: config.json, float32 model.safetensors, tokenizer.

    Raises ModelError if the file is missing or damaged, or holds what can't be rebuilt exactly;
    then `folder` is as before.
    """
    from safetensors.numpy import save_file

    reader = _open(file)
    try:
        facts = {key: field.contents() for key, field in reader.fields.items()}
        _require_plain_llama(facts, file)
        config = _config(facts, tied="output.weight" not in {tensor.name for tensor in reader.tensors})
        tokenizer = _tokenizer(facts, file)
        weights = _weights(reader, config, file)
    except KeyError as missing:
        raise ModelError(f"{file}: damaged or incomplete: the entry {missing} is missing") from None
    except _DAMAGE as problem:
        raise _damaged(file, problem) from None
    with replacing(folder) as partial:
        partial.mkdir()
        write_json(partial / "config.json", config)
        write_json(partial / "tokenizer_config.json", _tokenizer_config(facts))
        (partial / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        # transformers wants to be told the framework, though the format is the same for all
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})


# What the reader of the gguf package runs into where a file ends early or holds nonsense.
_DAMAGE = (ValueError, KeyError, IndexError, TypeError, OverflowError, ZeroDivisionError, RecursionError)


def _damaged(file: Path, problem: object) -> ModelError:
    return ModelError(f"{file}: damaged, or not a GGUF file ({problem}); get the file again")


def _open(file: Path) -> "GGUFReader":
    from gguf import GGUFReader

    if not file.is_file():
        raise ModelError(f"{file}: no such file")
    try:
        return GGUFReader(file)
    except _DAMAGE as problem:
        raise _damaged(file, problem) from None
    except OSError as problem:
        raise ModelError(f"{file}: can't be read: {problem}") from None


def _require_plain_llama(facts: dict[str, Any], file: Path) -> None:
    architecture = facts["general.architecture"]
    if architecture != "llama":
        raise ModelError(
            f"{file}: a GGUF file of the architecture {architecture!r}; only 'llama' can be unpacked, "
            "other models load from an ordinary Hugging Face folder (model.source=hub or model.source=local)"
        )
    if facts.get("llama.rope.scaling.type", "none") != "none":
        raise ModelError(f"{file}: has scaled rotary embeddings, which can't be unpacked")
    if facts.get("llama.rope.dimension_count", _head_size(facts)) != _head_size(facts):
        raise ModelError(f"{file}: has rotary embeddings on a part of each head, which can't be unpacked")


def _head_size(facts: dict[str, Any]) -> int:
    whole = facts["llama.embedding_length"] // facts["llama.attention.head_count"]
    return facts.get("llama.attention.key_length", whole)


def _config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": _head_size(facts),
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": _shortest(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(facts.get("llama.rope.freq_base", 10000.0)),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _shortest(value: float) -> float:
    """Give 1e-05 for the float32 that widens to 9.999999747378752e-06: what its author wrote."""
    import numpy as np

    return float(str(np.float32(value)))


def _weights(reader: "GGUFReader", config: dict[str, Any], file: Path) -> dict[str, "np.ndarray"]:
    from gguf import MODEL_ARCH, get_tensor_name_map

    shapes = _shapes(config)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    places = {f"{names.get_name(name.removesuffix('.weight'))}.weight": name for name in shapes}
    weights = {}
    for tensor in reader.tensors:
        if tensor.name not in places:
            raise ModelError(f"{file}: holds {tensor.name}, which an ordinary Llama model has no place for")
        name = places[tensor.name]
        weights[name] = _values(tensor, config, file)
        if weights[name].shape != shapes[name]:
            raise _damaged(file, f"{tensor.name} has the shape {weights[name].shape}, expected {shapes[name]}")
    if missing := sorted(shapes.keys() - weights.keys()):
        raise _damaged(file, f"{len(missing)} tensors are missing, for instance {missing[0]}")
    return weights


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    try:
        with torch.device("meta"):
            state = LlamaForCausalLM(LlamaConfig(**config)).state_dict()
    except Exception as problem:  # transformers raises whatever its checks and modules do
        raise ValueError(f"no Llama model: {problem}") from None
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    return {name: tuple(value.shape) for name, value in state.items()}


def _values(tensor: "ReaderTensor", config: dict[str, Any], file: Path) -> "np.ndarray":
    import numpy as np
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError:
        raise ModelError(
            f"{file}: {tensor.name} is stored as {tensor.tensor_type.name}, which can't be unpacked"
        ) from None
    if not np.isfinite(values).all():
        raise _damaged(file, f"{tensor.name} holds values that aren't finite numbers")
    part = tensor.name.split(".")[-2]
    if heads := {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part):
        # llama.cpp rotates neighbouring rows of a head with each other, transformers one of the first half with one of the second
        apart = values.reshape(heads, values.shape[0] // heads // 2, 2, -1).swapaxes(1, 2)
        values = apart.reshape(values.shape)
    return np.ascontiguousarray(values)


def _tokenizer(facts: dict[str, Any], file: Path) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    kind, splitting = facts["tokenizer.ggml.model"], facts.get("tokenizer.ggml.pre")
    if kind != "gpt2" or splitting not in ("smollm", "gpt-2"):
        raise ModelError(
            f"{file}: has a tokenizer of the kind {kind!r} with the splitting {splitting!r}; only 'gpt2' "
            "with 'smollm' or 'gpt-2' can be unpacked, others load with model.source=hub or model.source=local"
        )
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    kinds = facts["tokenizer.ggml.token_type"]
    try:
        tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    except Exception as problem:  # the tokenizers library raises nothing more specific
        raise _damaged(file, problem) from None
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if splitting == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
    own = [pair for pair in zip(tokens, kinds, strict=True) if pair[1] in (CONTROL_TOKEN, USER_TOKEN)]
    tokenizer.add_tokens([AddedToken(token, special=of == CONTROL_TOKEN, normalized=False) for token, of in own])
    if facts.get("tokenizer.ggml.add_bos_token", False):
        index = facts["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[index]} $A",
            pair=f"{tokens[index]} $A {tokens[index]}:1 $B:1",
            special_tokens=[(tokens[index], index)],
        )
    return tokenizer


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    indices = {name: facts.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {
        # this class takes tokenizer.json as it is; the Llama one would rebuild it with its own splitting
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{name: tokens[index] for name, index in indices.items() if index is not None},
        **({"chat_template": facts["tokenizer.chat_template"]} if "tokenizer.chat_template" in facts else {}),
    }
