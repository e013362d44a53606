"""A GGUF file of a pico Llama model, unpacked, is the model it was made from."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from skill_grafting.support.errors import ModelError
from stages.text.sources.gguf_folder import unpack_gguf

BYTES = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "Ġt", "Ġto", "ĠĠ", "it"]
MERGES = ["Ġ t", "Ġt o", "Ġ Ġ", "i t"]
SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def pico_model(tied=True):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(TOKENS), rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, rms_norm_eps=1e-5,
                         max_position_embeddings=128, tie_word_embeddings=tied, **SHAPE)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def neighbours(rows, heads):
    """llama.cpp's order of query and key rows, as its converter makes it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(model):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    tensors = {f"{names.get_name(name.removesuffix('.weight'))}.weight": value for name, value in weights.items()}
    for name in tensors:
        if heads := {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2]):
            tensors[name] = neighbours(tensors[name], heads)
    return tensors


def write_gguf(path, tensors, architecture="llama", stored="F32", add_bos=False, pre="smollm", extra=None):
    writer = gguf.GGUFWriter(path, architecture)
    for add, value in {
        "context_length": 128, "embedding_length": 32, "feed_forward_length": 64, "block_count": 2, "head_count": 4,
        "head_count_kv": 2, "rope_freq_base": 5000.0, "layer_norm_rms_eps": 1e-5, "tokenizer_model": "gpt2", "tokenizer_pre": pre,
        "token_list": TOKENS, "token_merges": MERGES, "token_types": [3] * 3 + [1] * (len(TOKENS) - 3),
        "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": add_bos,
    }.items():  # fmt: skip
        getattr(writer, f"add_{add}")(value)
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[stored if values.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()
    return path


def logits(model):
    with torch.no_grad():
        return model(torch.arange(40, 64).reshape(2, 12)).logits


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    model = pico_model()
    return model, write_gguf(tmp_path_factory.mktemp("tied") / "pico.gguf", gguf_tensors(model))


@pytest.fixture(scope="module")
def unpacked(tied):
    folder = tied[1].with_name("folder")
    unpack_gguf(tied[1], folder)
    return folder


@pytest.mark.parametrize("shared", [True, False])
def test_logits_are_those_of_the_original_with_a_head_of_its_own_or_not(tmp_path, shared):
    model = pico_model(shared)
    unpack_gguf(write_gguf(tmp_path / "pico.gguf", gguf_tensors(model)), tmp_path / "folder")
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == shared
    torch.testing.assert_close(logits(again.eval()), logits(model), atol=1e-4, rtol=1e-4)


def test_same_file_same_bytes_and_a_config_that_says_what_the_author_wrote(tmp_path, tied, unpacked):
    (tmp_path / "again").mkdir()
    (tmp_path / "again/stale.json").write_text("{}")  # of an earlier folder, which is replaced
    unpack_gguf(tied[1], tmp_path / "again")
    files = {path.name: path.read_bytes() for path in unpacked.iterdir()}
    known = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {*files} == known and {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == files
    config = json.loads((unpacked / "config.json").read_text())
    assert (np.float32(config["rms_norm_eps"]), config["rope_parameters"]["rope_theta"]) == (np.float32(1e-5), 5000.0)
    assert (config["head_dim"], config["dtype"], "quantization_config" in config) == (8, "float32", False)


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(unpacked):
    tokenizer = AutoTokenizer.from_pretrained(unpacked)
    text = "it to  12<|im_end|>é"
    assert tokenizer.tokenize(text) == ["it", "Ġto", "Ġ", "Ġ", "1", "2", "<|im_end|>", "Ã", "©"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_start|>", "<|im_end|>", 128)


def test_tokenizer_begins_with_bos_if_the_file_says_so(tmp_path, tied):
    file = write_gguf(tmp_path / "pico.gguf", gguf_tensors(tied[0]), add_bos=True, pre="gpt-2")
    unpack_gguf(file, tmp_path / "folder")
    assert AutoTokenizer.from_pretrained(tmp_path / "folder")("it")["input_ids"] == [1, TOKENS.index("it")]


def with_tensor(name, values):
    return lambda tensors: tensors.update({name: values})


NO_GGUF, HALF = "damaged, or not a GGUF file that transformers reads", (0.0, 0.01, 0.3, 0.999)
# what is done to the tensors, to the settings, or to the file
UNREADABLE = [
    (None, {"architecture": "nonsense"}, None, NO_GGUF),
    (None, {"extra": {"llama.rope.scaling.type": "yarn"}}, None, "scaled rotary embeddings"),
    (with_tensor("blk.0.ffn_gate_inp.weight", np.zeros((4, 32), np.float32)), {}, None, "holds 21 tensors, of which its model reads only 20"),
    (lambda tensors: tensors.pop("blk.1.attn_v.weight"), {}, None, "model.layers.1.self_attn.v_proj.weight"),
    (with_tensor("output_norm.weight", np.ones(16, np.float32)), {}, None, NO_GGUF),
    (None, {}, lambda file: file.unlink(), "no such file"),
    (None, {}, lambda file: file.write_text("<html>not found</html>" * 100), NO_GGUF),
    *((None, {}, lambda file, share=share: file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)]), "damaged") for share in HALF),
]  # fmt: skip


@pytest.mark.parametrize(("change", "settings", "spoil", "words"), UNREADABLE)
def test_what_cannot_be_rebuilt_whole_is_refused_and_leaves_nothing(tmp_path, tied, change, settings, spoil, words):
    tensors = gguf_tensors(tied[0])
    if change:
        change(tensors)
    file = write_gguf(tmp_path / "pico.gguf", tensors, **settings)
    if spoil:
        spoil(file)
    with pytest.raises(ModelError) as caught:
        unpack_gguf(file, tmp_path / "folder")
    assert words in str(caught.value) and str(file) in str(caught.value)
    assert not list(tmp_path.glob("folder*"))
