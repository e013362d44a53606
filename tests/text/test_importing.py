"""A stranger's model folder becomes the project's, without a head, its parameters in groups; what can't be used is refused in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import load_model, load_tokenizer, read_tensors
from skill_grafting.support.errors import ModelError
from stages.text.models.importing import import_model, sees_later_words
from stages.text.models.label_model import LabelModel
from stages.text.models.shared import SharedModel
from stages.text.models.structure import groups_of, parameter_groups
from tests.pico import (
    PAIRS,
    TOY,
    bert_config,
    edit_tensors,
    model_settings,
    runtime,
    save_with_words,
    set_config,
    small_config,
)
from tests.text.test_label_model import AUTO, CONFIGS, MODES

BIAS = "bert.encoder.layer.1.output.dense.bias"


@pytest.mark.parametrize(("name", "mode", "parameter", "group"), [
    ("bert", "standard", "classifier.weight", "head"),
    ("bert", "standard", "bert.pooler.dense.weight", "pooler"),
    ("bert", "standard", "bert.embeddings.LayerNorm.bias", "embeddings"),
    ("bert", "prompt", "cls.predictions.transform.dense.weight", "lm_head"),
    ("roberta", "standard", "classifier.dense.weight", "head"),
    ("roberta", "prompt", "lm_head.dense.weight", "lm_head"),
    ("xlm-roberta", "prompt", "roberta.embeddings.word_embeddings.weight", "embeddings"),
    ("distilbert", "standard", "pre_classifier.weight", "head"),
    ("distilbert", "prompt", "vocab_transform.weight", "lm_head"),
    ("mpnet", "standard", "mpnet.encoder.relative_attention_bias.weight", "embeddings"),
    ("mpnet", "prompt", "lm_head.dense.weight", "lm_head"),
    ("gpt2", "standard", "score.weight", "head"),
    ("gpt2", "standard", "transformer.ln_f.weight", "lm_head"),
    ("gpt2", "autoregressive", "transformer.wpe.weight", "embeddings"),
    ("llama", "autoregressive", "lm_head.weight", "lm_head"),
    ("llama", "autoregressive", "model.norm.weight", "lm_head"),
])  # fmt: skip
def test_every_parameter_is_in_one_group_and_landmarks_are_in_theirs(name, mode, parameter, group):
    """That the layers are the blocks, whole, is shown of many more kinds in tests/test_kinds.py."""
    model = AUTO[mode].from_config(CONFIGS[name])
    groups = parameter_groups(model, mode)
    assert [*map(model.get_parameter, groups)] == [*model.parameters()], "each once, in the model's order"
    assert groups[parameter] == group and ("head" in groups.values()) == (mode == "standard")


def stored_names(folder) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {*file.keys()}


@pytest.mark.parametrize("mode", MODES)
def test_imported_values_are_those_of_the_source_without_a_head(make_cell, pico_bert, pico_llama, mode):
    cell = make_cell(mode)
    source = load_model(pico_llama if mode == "autoregressive" else pico_bert, mode).state_dict()
    written, heads = stored_names(cell.pretrained_folder), {*cell.anatomy.names(["head"])}
    assert heads == ({"classifier.weight", "classifier.bias"} if mode == "standard" else set())
    assert written == {*cell.anatomy.groups} - heads
    assert stored_names(cell.finetuned_folder) == {*cell.anatomy.groups}, "the fine-tuned model has one"
    values = read_tensors(cell.pretrained_folder, written)
    assert all(torch.equal(value, source[name]) for name, value in values.items())
    assert cell.anatomy.parameters == sum(value.numel() for value in values.values())
    blocks = "model.layers." if mode == "autoregressive" else "bert.encoder.layer."
    assert cell.region.size == sum(source[name].numel() for name in source if name.startswith(blocks))
    assert read_anatomy(cell.pretrained_folder) == cell.anatomy


def test_a_decoder_of_the_same_kind_can_predict_the_next_word(tmp_path):
    config = bert_config()
    config.is_decoder = True
    folder = save_with_words(hf.BertLMHeadModel(config), tmp_path / "model")
    assert import_model(folder, model_settings("autoregressive"), tmp_path / "out").parameters > 0


@pytest.mark.parametrize("words", [3, 11, 12, 130])
def test_later_words_are_told_with_a_vocabulary_of_any_size(words):
    sizes = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    causal = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=words, n_embd=32, n_layer=2, n_head=2, **sizes)).eval()
    config = bert_config()
    config.vocab_size = words
    assert not sees_later_words(causal) and sees_later_words(hf.BertForMaskedLM(config).eval())


def test_loading_a_tokenizer_changes_nothing_of_what_is_saved_of_it(tmp_path, pico_bert):
    folder = Path(shutil.copytree(pico_bert, tmp_path / "model"))
    tokenizer = load_tokenizer(folder)
    tokenizer(
        "a good film", truncation=True, max_length=3, padding="max_length"
    )  # both are part of the file from then on
    tokenizer.save_pretrained(folder)
    before = (folder / "tokenizer.json").read_bytes()
    load_tokenizer(folder).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/tokenizer.json").read_bytes() == before


@pytest.mark.parametrize("labels", [2, 5])
def test_the_head_of_a_classifier_is_dropped_and_said(tmp_path, pico_bert, labels, capsys):
    config = bert_config()
    config.num_labels = labels
    folder = save_with_words(hf.BertForSequenceClassification(config), tmp_path / "model")
    anatomy = import_model(folder, model_settings("standard"), tmp_path / "out")
    assert capsys.readouterr().out == "pico: its own classification head is dropped; each task gets a new one\n"
    assert {*stored_names(tmp_path / "out")} == {*anatomy.groups} - {*anatomy.names(["head"])}
    assert LabelModel.load(tmp_path / "out", PAIRS, model_settings("standard"), runtime()).model.config.num_labels == 3
    import_model(pico_bert, model_settings("standard"), tmp_path / "none")
    assert "classification" not in capsys.readouterr().out, "control: this one has no such head"


def test_the_prediction_head_below_a_classifier_is_pretrained(tmp_path, capsys):
    source = hf.ModernBertForMaskedLM(small_config("modernbert"))
    anatomy = import_model(save_with_words(source, tmp_path / "model"), model_settings("standard"), tmp_path / "out")
    assert capsys.readouterr().out == "pico: has what model.mode=standard doesn't read: a head of its pretraining\n"
    assert anatomy.names(["head"]) == ["classifier.weight", "classifier.bias"]
    kept = read_tensors(tmp_path / "out", ["head.dense.weight"])["head.dense.weight"]
    assert torch.equal(kept, source.head.dense.weight) and anatomy.groups["head.dense.weight"] == "lm_head"


def test_a_pooler_that_a_checkpoint_lacks_is_part_of_the_head(tmp_path, capsys):
    folder = save_with_words(hf.BertForMaskedLM(bert_config()), tmp_path / "model")
    anatomy = import_model(folder, model_settings("standard"), tmp_path / "out")
    pooler = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]
    assert anatomy.names(["head"]) == [*pooler, "classifier.weight", "classifier.bias"] and not anatomy.names(
        ["pooler"]
    )
    assert stored_names(tmp_path / "out").isdisjoint(anatomy.names(["head"]))
    assert (
        f"doesn't have {', '.join(sorted(pooler))}, which are part of each task's new head" in capsys.readouterr().out
    )
    model = LabelModel.load(tmp_path / "out", TOY, model_settings("standard"), runtime())
    assert groups_of(model) == anatomy.groups
    shared = SharedModel.load(tmp_path / "out", [TOY, PAIRS], model_settings("standard"), runtime())
    first, second = (view.parameters() for view in shared.views.values())
    own = {name for name in first if first[name] is not second[name]}
    assert own == {*anatomy.names(["head"])} == {*shared.heads()["toy"]}


def test_tensors_that_nothing_reads_are_said(tmp_path, pico_bert, capsys):
    shutil.copytree(pico_bert, tmp_path / "model")
    odd = {"odd.bias": torch.zeros(1), "bert.rotary.inv_freq": torch.ones(4)}
    edit_tensors(tmp_path / "model", lambda tensors: tensors.update(odd))
    import_model(tmp_path / "model", model_settings("prompt"), tmp_path / "out")
    known = "a pooler, tables that are made anew, a head of its pretraining"
    assert capsys.readouterr().out == f"pico: has what model.mode=prompt doesn't read: {known}, odd.bias\n"




# --- Refusals --------------------------------------------------------------------------------------------------------


def saved(make: Callable[[], hf.PreTrainedModel]) -> Callable[[Path], object]:
    return lambda folder: save_with_words(make(), folder)


def setting(file: str = "config.json", **changes: object) -> Callable[[Path], object]:
    return lambda folder: set_config(folder, file, **changes)


def bias(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], object]:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({BIAS: change(tensors[BIAS])}))


def cut_short(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


def no_unknown(folder: Path) -> None:
    words = {word: number for number, word in enumerate(["[PAD]", "good", "bad"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)


# a model that no short text fits
LANDMARKS = {"max_position_embeddings": 64, "num_landmarks": 4, "segment_means_seq_len": 64}
BERT, LLAMA = (lambda: hf.BertForMaskedLM(bert_config())), (lambda: hf.LlamaForCausalLM(CONFIGS["llama"]))
# what a folder is made, the mode, and a word of the refusal
REFUSED = [
    (saved(lambda: hf.BertModel(bert_config())), "prompt", "language-model head"), (saved(LLAMA), "prompt", "use model.mode=standard"),
    (saved(lambda: hf.T5ForConditionalGeneration(small_config("t5"))), "standard", "encoder-decoder"), (saved(BERT), "autoregressive", "sees the words after"),
    (saved(lambda: hf.XLMWithLMHeadModel(small_config("xlm"))), "autoregressive", "sees"), (saved(lambda: hf.XLNetLMHeadModel(small_config("xlnet"))), "autoregressive", "sees"),
    (saved(lambda: hf.NystromformerForSequenceClassification(small_config("nystromformer", **LANDMARKS))), "standard", "can't be run"),
    (bias(lambda values: values.fill_(float("inf"))), "prompt", BIAS), (bias(lambda values: values.to(torch.int8)), "prompt", rf"I8 \({BIAS}\)"),
    (cut_short, "prompt", "damaged"), (no_unknown, "prompt", "tokenizer"), (setting(hidden_size=64), "standard", "don't fit"),
    (setting(num_hidden_layers=5), "standard", "all parameters"), (setting(num_hidden_layers=10**5), "prompt", "is 100,000, and its files have"),
    (setting(num_labels=10**9), "prompt", "num_labels should be a number of labels, at most 1,000,000"), (setting("tokenizer_config.json", tokenizer_class=5), "standard", "tokenizer"),
    (setting("tokenizer_config.json", pad_token="[NEW]"), "standard", "131 tokens"),
]  # fmt: skip
# the same of what is read of a folder
UNREAD = [
    (lambda _: load_model(Path("none"), "prompt"), "no model there"), (lambda _: load_tokenizer(Path("none")), "no such folder"),
    (lambda _: read_tensors(Path("none"), ["a"]), "no such checkpoint"), (lambda _: read_anatomy(Path("none")), "no such file"),
    (lambda pico: load_model(pico, "LlamaForCausalLM"), "model: is a model of the kind bert, and LlamaForCausalLM of the kind llama$"),
    (lambda pico: load_model(pico, "WhisperForConditionalGeneration"), "model: is a model of the kind bert, and Whisper.* of the kind whisper$"),
    (lambda pico: read_tensors(pico, ["a.b"]), "'a.b'"), (lambda pico: cut_short(pico) or read_tensors(pico, [BIAS]), "damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "mode", "word"), [*REFUSED, *((read, "", word) for read, word in UNREAD)])
def test_a_folder_that_can_t_be_used_is_refused_in_one_line(tmp_path, pico_bert, change, mode, word):
    folder = Path(shutil.copytree(pico_bert, tmp_path / "model"))
    with pytest.raises(ModelError, match=word) as caught:
        change(folder)
        import_model(folder, model_settings(mode), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_fine_tuned_head_of_another_task_is_not_replaced_in_silence(make_cell):
    cell = make_cell("standard")
    assert cell.load().model.config.num_labels == 2
    said = r"its weights don't fit its config.json: classifier.bias is \[2\] in the weights and \[3\]"
    with pytest.raises(ModelError, match=said):
        LabelModel.load(cell.finetuned_folder, PAIRS, model_settings("standard"), runtime())
