"""A LabelModel gives the stock model's own logits, and knows its parameters."""

import gc
import shutil
import weakref
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from skill_grafting.data.batching import Batch
from skill_grafting.data.encoding import Example
from skill_grafting.errors import ModelError, StorageError
from skill_grafting.io import replacing
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.importing import import_model
from skill_grafting.models.label_model import LabelModel, reset_to_pretrained
from skill_grafting.models.loading import load_model, load_tokenizer, read_tensors
from skill_grafting.models.predicting import dev_score, predict
from skill_grafting.models.probing import most_tokens
from skill_grafting.models.shared import SharedModel
from skill_grafting.models.structure import groups_of, parameter_groups
from skill_grafting.models.visibility import Reader, sees_later_words
from tests.pico import (
    PAIRS,
    TOY,
    VOCABULARY,
    bert_config,
    edit_tensors,
    model_settings,
    runtime,
    same,
    save_with_words,
    set_config,
    toy_rows,
    values_of,
    word_tokenizer,
)

AUTO = {"standard": hf.AutoModelForSequenceClassification, "prompt": hf.AutoModelForMaskedLM, "autoregressive": hf.AutoModelForCausalLM}  # fmt: skip


def by_hand(mode: str, folder: Path, model: LabelModel, examples: list) -> torch.Tensor:
    """One example at a time through the stock class, the whole vocabulary at every position."""
    stock, rows = AUTO[mode].from_pretrained(folder).eval(), []
    words = [] if mode == "standard" else [TOY.prompt_for(mode).verbalizer[label] for label in TOY.labels]
    ids = [model.tokenizer(" " + word, add_special_tokens=False)["input_ids"][0] for word in words]
    for example in examples:
        with torch.no_grad():
            logits = stock(input_ids=torch.tensor([example.input_ids])).logits[0]
        rows.append(logits if mode == "standard" else logits[example.position, ids])
    return torch.stack(rows)


MODES = ["standard", "prompt", "autoregressive"]


@pytest.mark.parametrize("mode", MODES)
def test_logits_are_those_of_the_unoptimised_computation(make_cell, mode):
    cell = make_cell(mode)
    model = cell.load()
    examples = model.encode(cell.rows["test"][:30])
    expected = by_hand(mode, cell.finetuned_folder, model, examples)
    assert torch.allclose(predict(model, examples), expected, atol=1e-5)
    assert not torch.allclose(expected.flip(0), expected, atol=1e-2), "control: rows differ"
    assert not torch.allclose(predict(cell.load("pretrained"), examples), expected, atol=1e-2), "control: models differ"


@pytest.mark.parametrize("mode", MODES)
def test_batching_padding_and_the_order_of_rows_change_nothing(make_cell, mode):
    cell, heard = make_cell(mode), []
    long = {"sentence1": "the film " * 9, "sentence2": None, "label": "positive"}
    examples = cell.load().encode([*cell.rows["test"][:30], long])
    assert len({len(example.input_ids) for example in examples}) > 4
    alone = predict(cell.load(batch_tokens=1), examples)
    assert torch.allclose(predict(cell.load(batch_tokens=64), examples, heard.append), alone, atol=1e-5)
    assert sum(heard) == 31 and len(heard) > 1, "it says how many rows are done"
    model = cell.load(batch_tokens=100_000)
    assert torch.allclose(predict(model, examples[::-1]).flip(0), alone, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(model.logits(model.batch(examples)), alone, atol=1e-5), "all padded to the longest"


SIZE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
CONFIGS = {
    "bert": bert_config(),
    "roberta": hf.RobertaConfig(**SIZE, max_position_embeddings=40, bos_token_id=0, eos_token_id=2, pad_token_id=1),
    "xlm-roberta": hf.XLMRobertaConfig(**SIZE, max_position_embeddings=40, bos_token_id=0, eos_token_id=2, pad_token_id=1),
    "distilbert": hf.DistilBertConfig(vocab_size=50, dim=16, hidden_dim=32, n_layers=3, n_heads=2, max_position_embeddings=40),
    "mpnet": hf.MPNetConfig(**SIZE, max_position_embeddings=40, bos_token_id=0, eos_token_id=2, pad_token_id=1),
    "gpt2": hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2, n_positions=40, bos_token_id=0, eos_token_id=0, pad_token_id=0),
    "llama": hf.LlamaConfig(**SIZE, num_key_value_heads=1, bos_token_id=0, eos_token_id=0, pad_token_id=0),
}  # fmt: skip
CAPPED = {"num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 0.5, "bos_token_id": 0, "eos_token_id": 0}
HEADS = {
    **{name: ("prompt", CONFIGS[name], True) for name in ("bert", "roberta", "distilbert", "mpnet")},
    **{name: ("autoregressive", CONFIGS[name], True) for name in ("gpt2", "llama")},
    "a tanh behind it": ("autoregressive", hf.Gemma2Config(**SIZE, **CAPPED, pad_token_id=0), True),
    "a bias of its own behind it": ("prompt", hf.EsmConfig(**SIZE, pad_token_id=0, mask_token_id=4), False),
}


class SharesOfAll(torch.nn.Module):
    """A head whose logits are of all words together."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden).log_softmax(-1)


def reader_and_batch(name: str, change=lambda model: model) -> tuple[Reader, Batch]:
    mode, config, _ = HEADS[name]
    torch.manual_seed(0)
    model = change(AUTO[mode].from_config(config))
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape)
    reader = Reader(model, mode, pad_id=0)
    texts = [Example(ids, [0] * len(ids), 0, len(ids) - 1) for ids in ([7, 8, 9, 5], [11, 12], [13])]
    return reader, reader.batch(texts)


@pytest.mark.parametrize("name", HEADS)
def test_the_head_computes_the_label_words_alone_where_they_come_out_the_same(name):
    reader, batch = reader_and_batch(name)
    weights = [*reader.model.parameters()]
    words, factors = torch.tensor([30, 6, 17]), torch.randn(3, 3)

    def read(*arguments: torch.Tensor) -> tuple[torch.Tensor, tuple]:
        logits = reader.logits(batch, *arguments)
        part = logits if arguments else logits.index_select(1, words)
        return part, torch.autograd.grad((part * factors).sum(), weights, materialize_grads=True, allow_unused=True)

    (alone, gradients), (whole, expected) = read(words), read()
    assert torch.allclose(alone, whole, atol=1e-5)
    assert not torch.allclose(reader.logits(batch, words[[1, 0, 2]]), whole, atol=1e-3), "control: other rows"
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(gradients, expected, strict=True))
    assert max(float(one.abs().max()) for one in gradients) > 1e-2, "control: not all of them are 0"
    sizes, head = [], reader.model.get_output_embeddings()
    whole_vocabulary = len(head.weight)
    head.register_forward_hook(lambda *call: sizes.append(call[2].shape[-1]))
    read(words)
    assert sizes == [3 if HEADS[name][2] else whole_vocabulary]
    assert reader.logits(batch).shape == (3, whole_vocabulary), "and afterwards all of them again"


def test_a_head_whose_logits_are_of_all_words_together_computes_all():
    def shares(model):
        model.lm_head = SharesOfAll(model.lm_head)
        model.get_output_embeddings = lambda: model.lm_head.head
        return model

    words = torch.tensor([30, 6, 17])
    for change, fallen_back in ((shares, True), (lambda model: model, False)):
        reader, batch = reader_and_batch("llama", change)
        sums = reader.logits(batch).exp().sum(1)
        assert torch.allclose(sums, torch.ones(3), atol=1e-4) == fallen_back
        assert torch.allclose(reader.logits(batch, words), reader.logits(batch).index_select(1, words), atol=1e-5)
        assert reader._narrow != fallen_back


def test_dev_score_is_accuracy_and_minus_cross_entropy(make_cell):
    cell = make_cell("standard")
    model = cell.load()
    examples = model.encode(cell.rows["test"][:50])
    logits, labels = predict(model, examples), torch.tensor([example.label for example in examples])
    chosen = logits.log_softmax(1)[range(50), labels]
    accuracy, minus_loss = dev_score(model, examples)
    assert accuracy == float((logits.argmax(1) == labels).double().mean())
    assert minus_loss == pytest.approx(float(chosen.mean()), abs=1e-6) and minus_loss < 0


def test_bfloat16_computes_roughly_and_keeps_float32_weights(make_cell):
    cell = make_cell("standard")
    model = cell.load()
    examples = model.encode(cell.rows["test"][:30])
    exact = predict(model, examples)
    model.runtime = model.runtime.__class__(model.runtime.device, torch.bfloat16, 2048)
    rough = predict(model, examples)
    assert rough.dtype == torch.float32 and not torch.equal(rough, exact) and torch.allclose(rough, exact, atol=0.5)
    assert {weight.dtype for weight in model.parameters().values()} == {torch.float32}


def test_only_chosen_parameters_get_gradients(make_cell):
    model = make_cell("prompt").load()
    names = {name for name, group in groups_of(model).items() if group == "layers"}
    chosen = model.train_only(names)
    batch = model.batch(model.encode(toy_rows(4)))
    model.logits(batch).sum().backward()
    assert {name for name, weight in model.parameters().items() if weight.grad is not None} == names == {*chosen}
    assert [*chosen] == [name for name in model.parameters() if name in names], "in the model's order"


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


@pytest.mark.parametrize(("mode", "heads"), [("standard", {"classifier.weight", "classifier.bias"}), ("prompt", set())])
def test_importing_writes_no_head_and_counts_what_it_wrote(make_cell, mode, heads):
    cell = make_cell(mode)
    written = stored_names(cell.pretrained_folder)
    assert {*cell.anatomy.names(["head"])} == heads and written == {*cell.anatomy.groups} - heads
    assert stored_names(cell.finetuned_folder) == {*cell.anatomy.groups}, "the fine-tuned model has one"
    tensors = read_tensors(cell.pretrained_folder, written)
    assert cell.anatomy.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert read_anatomy(cell.pretrained_folder) == cell.anatomy


@pytest.mark.parametrize("mode", MODES)
def test_imported_values_are_those_of_the_source(make_cell, pico_bert, pico_llama, mode):
    cell = make_cell(mode)
    source = load_model(pico_llama if mode == "autoregressive" else pico_bert, mode).state_dict()
    values = read_tensors(cell.pretrained_folder, stored_names(cell.pretrained_folder))
    assert all(torch.equal(value, source[name]) for name, value in values.items())
    blocks = "model.layers." if mode == "autoregressive" else "bert.encoder.layer."
    assert cell.region.size == sum(source[name].numel() for name in source if name.startswith(blocks))


def test_what_stands_between_the_layers_and_a_new_head_is_reset_to_its_pretrained_values(pico_gpt2, tmp_path):
    settings = model_settings("standard").model_copy(update={"source": "local", "root": str(pico_gpt2)})
    anatomy = import_model(pico_gpt2, settings, tmp_path / "pretrained")
    model = LabelModel.load(tmp_path / "pretrained", TOY, settings, runtime())
    before = values_of(model)
    model.put({name: values + 1 for name, values in before.items()})
    reset_to_pretrained(model, anatomy, tmp_path / "pretrained")
    others = {name for name, values in values_of(model).items() if not torch.equal(values, before[name])}
    assert others == {"score.weight"} and anatomy.groups["transformer.ln_f.weight"] == "lm_head"


def test_what_two_parts_share_is_found_under_the_name_that_it_is_stored_by(tmp_path):
    config = hf.XLMRobertaConfig(**{**SIZE, "vocab_size": 150}, max_position_embeddings=40, pad_token_id=0)
    source = save_with_words(hf.AutoModelForMaskedLM.from_config(config), tmp_path / "model")
    anatomy = import_model(source, model_settings("prompt"), tmp_path / "out")
    assert stored_names(tmp_path / "out") == {*anatomy.groups}
    model = LabelModel.load(tmp_path / "out", TOY, model_settings("prompt"), runtime())
    before = values_of(model)
    model.put({name: values + 1 for name, values in before.items()})
    reset_to_pretrained(model, anatomy, tmp_path / "out")
    assert same(values_of(model), before)
    torch_names = [name for name, _ in model.model.named_parameters()]
    assert "lm_head.decoder.weight" in torch_names and torch_names != [*before], "control: torch calls it otherwise"


T5 = {"vocab_size": 200, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
# a model that no short text fits
LANDMARKS = {"vocab_size": 150, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
             "num_landmarks": 4, "segment_means_seq_len": 64}  # fmt: skip
MISFITS = [
    (lambda: hf.BertModel(bert_config()), "prompt", r"pico: the checkpoint doesn't have a language-model head \(for instance cls\..*model.mode=prompt needs"),
    (lambda: hf.LlamaForCausalLM(CONFIGS["llama"]), "prompt", "of the kind llama, which can't be read with model.mode=prompt; use model.mode=standard or model.mode=autoreg"),
    (lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), "standard", "of the kind t5, an encoder-decoder, of which only half"),
    (lambda: hf.BertForMaskedLM(bert_config()), "autoregressive", "of the kind bert that sees the words after a position too, .* model.mode=autoregr"),
    (lambda: hf.XLMWithLMHeadModel(hf.XLMConfig(vocab_size=150, emb_dim=32, n_layers=2, n_heads=2)), "generative", "of the kind xlm that sees .* with model.mode=generative; use model.mode=prompt or"),
    (lambda: hf.XLNetLMHeadModel(hf.XLNetConfig(vocab_size=150, d_model=32, n_layer=2, n_head=2, d_inner=64)), "autoregressive", "of the kind xlnet that sees the words after"),
    (lambda: hf.NystromformerForSequenceClassification(hf.NystromformerConfig(**LANDMARKS)), "standard", r"^pico: can't be run on a text of 12 tokens: RuntimeError: shape .* is invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "mode", "message"), MISFITS)
def test_a_model_that_the_mode_can_t_read_is_refused(tmp_path, make, mode, message):
    folder = save_with_words(make(), tmp_path / "model")
    with pytest.raises(ModelError, match=message):
        import_model(folder, model_settings(mode), tmp_path / "out")


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


def test_a_tokenizer_without_a_token_for_unknown_words_is_refused_before_it_meets_one(tmp_path, pico_bert):
    folder = Path(shutil.copytree(pico_bert, tmp_path / "model"))
    words = {word: number for number, word in enumerate(["[PAD]", "good", "bad"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)
    with pytest.raises(ModelError, match="no usable tokenizer: Exception: WordLevel error: Missing .UNK. token"):
        load_tokenizer(folder)


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


MODERN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}


def test_the_prediction_head_below_a_classifier_is_pretrained(tmp_path, capsys):
    source = hf.ModernBertForMaskedLM(hf.ModernBertConfig(vocab_size=len(VOCABULARY), **MODERN))
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


UNFIT = {
    "no number": (lambda values: values.fill_(float("inf")), r": values that are no numbers: NaN or infinite \(bert.encoder.layer.1.output.dense.bias\)"),
    "quantised": (lambda values: values.to(torch.int8), r": has weights in I8 \(bert.encoder.layer.1.output.dense.bias\); only those in F32, BF16, F16 can be"),
    "too fine": (lambda values: values.double(), r": has weights in F64 \(bert.encoder.layer.1.output.dense.bias\); only those in F32"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_weights_that_can_t_be_grafted_are_refused(tmp_path, pico_bert, case):
    change, message = UNFIT[case]
    shutil.copytree(pico_bert, tmp_path / "model")
    name = "bert.encoder.layer.1.output.dense.bias"
    edit_tensors(tmp_path / "model", lambda tensors: tensors.update({name: change(tensors[name])}))
    with pytest.raises(ModelError, match=message):
        import_model(tmp_path / "model", model_settings("prompt"), tmp_path / "out")


def test_tensors_that_nothing_reads_are_said(tmp_path, pico_bert, capsys):
    shutil.copytree(pico_bert, tmp_path / "model")
    odd = {"odd.bias": torch.zeros(1), "bert.rotary.inv_freq": torch.ones(4)}
    edit_tensors(tmp_path / "model", lambda tensors: tensors.update(odd))
    import_model(tmp_path / "model", model_settings("prompt"), tmp_path / "out")
    known = "a pooler, tables that are made anew, a head of its pretraining"
    assert capsys.readouterr().out == f"pico: has what model.mode=prompt doesn't read: {known}, odd.bias\n"


@pytest.mark.parametrize(
    "changes", [{"output_attentions": True}, {"output_hidden_states": True}, {"return_dict": False}]
)
def test_another_form_of_answer_that_a_config_asks_for_is_reset(tmp_path, pico_bert, changes):
    shutil.copytree(pico_bert, tmp_path / "model")
    for name, more in (("plain", {}), ("other", changes)):
        set_config(tmp_path / "model", **more)
        import_model(tmp_path / "model", model_settings("prompt"), tmp_path / name)
    assert (tmp_path / "other/config.json").read_bytes() == (tmp_path / "plain/config.json").read_bytes()


def test_a_fine_tuned_head_of_another_task_is_not_replaced_in_silence(make_cell):
    cell = make_cell("standard")
    assert cell.load().model.config.num_labels == 2
    said = r"its weights don't fit its config.json: classifier.bias is \[2\] in the weights and \[3\]"
    with pytest.raises(ModelError, match=said):
        LabelModel.load(cell.finetuned_folder, PAIRS, model_settings("standard"), runtime())


ODD = [
    ("config.json", {"hidden_size": 64}, "its weights don't fit its config.json: "),
    ("config.json", {"num_hidden_layers": 5}, "the checkpoint doesn't have all parameters of this class"),
    ("config.json", {"num_hidden_layers": "x"}, "config.json: can't be used"),
    ("config.json", {"hidden_act": "no such"}, "could not be loaded for model.mode=standard"),
    ("config.json", {"id2label": 5}, "config.json: can't be used"),
    ("config.json", {"vocab_size": -1}, "could not be loaded for model.mode=standard"),
    ("config.json", {"num_attention_heads": 0}, "could not be loaded for model.mode=standard"),
    ("tokenizer.json", {"model": 5}, "no usable tokenizer"),
    ("tokenizer.json", {"version": None}, "no usable tokenizer"),
    ("tokenizer_config.json", {"tokenizer_class": 5}, "no usable tokenizer"),
    ("tokenizer_config.json", {"pad_token": "[NEW]"}, "its tokenizer has 131 tokens, but the model only 130"),
]


@pytest.mark.parametrize(("file", "changes", "message"), ODD)
def test_odd_json_in_a_folder_is_one_line(tmp_path, pico_bert, file, changes, message):
    shutil.copytree(pico_bert, tmp_path / "model")
    set_config(tmp_path / "model", file, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        import_model(tmp_path / "model", model_settings("standard"), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_full_disk_in_the_middle_of_a_tokenizer_is_said(tmp_path):
    with pytest.raises(StorageError, match="No space left on device"), replacing(tmp_path / "target") as partial:
        partial.mkdir()
        (partial / "tokenizer.json").symlink_to("/dev/full")
        word_tokenizer().save_pretrained(partial)
    assert [*tmp_path.iterdir()] == []


LIMITED = {
    "bert": (hf.AutoModelForMaskedLM, bert_config(), 64),
    "roberta": (hf.AutoModelForMaskedLM, hf.RobertaConfig(max_position_embeddings=66), 64),
    "mpnet": (hf.AutoModelForMaskedLM, hf.MPNetConfig(max_position_embeddings=66), 64),
    "distilbert": (hf.AutoModelForMaskedLM, hf.DistilBertConfig(max_position_embeddings=64), 64),
    "gpt2": (hf.AutoModelForCausalLM, hf.GPT2Config(n_positions=64), 64),
    "llama": (hf.AutoModelForCausalLM, hf.LlamaConfig(max_position_embeddings=64), None),
}


@pytest.mark.parametrize("kind", LIMITED)
def test_the_longest_text_is_what_the_model_has_positions_for(kind):
    auto, config, most = LIMITED[kind]
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    for name, value in small.items():
        setattr(config, name, value)
    model = auto.from_config(config).eval()
    assert most_tokens(model) == most
    model(input_ids=torch.full((1, most or 200), 5))
    if most:
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, most + 1), 5))


def test_a_text_longer_than_the_model_can_read_is_refused(make_cell):
    rows = toy_rows(2)
    model = LabelModel.load(make_cell("prompt").pretrained_folder, TOY, model_settings("prompt", 100), runtime())
    assert len(model.encode(rows)) == 2
    rows[1]["sentence1"] += " good" * 200
    line = "model.max_length: 100 leaves a text of the task toy 100 tokens long, and the model can read at most 64"
    with pytest.raises(ModelError, match=line):
        model.encode(rows)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda _: load_model(Path("none"), "prompt"), r"none: no model there \(config.json is missing\)"),
        (lambda _: load_tokenizer(Path("none")), "none: no such folder"),
        (lambda _: read_tensors(Path("none"), ["a"]), "none/model.safetensors: no such checkpoint"),
        (lambda _: read_anatomy(Path("none")), "none/anatomy.json: no such file"),
        (lambda pico: read_tensors(pico, ["a.b"]), "has no tensor 'a.b'; it belongs to another model"),
    ],
)
def test_what_is_not_there_or_of_another_model_is_named(pico_bert, read, message):
    with pytest.raises(ModelError, match=message):
        read(pico_bert)


def test_a_damaged_checkpoint_is_named(tmp_path, pico_bert):
    shutil.copytree(pico_bert, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    load_model(tmp_path, "prompt")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="damaged"):
        read_tensors(tmp_path, ["bert.embeddings.word_embeddings.weight"])
    with pytest.raises(ModelError, match=r"could not be loaded for model.mode=prompt"):
        load_model(tmp_path, "prompt")


def test_dropout_is_what_was_asked_for(make_cell):
    cell = make_cell("prompt")
    for asked, expected in ((0.37, 0.37), (0.0, 0.0), (None, 0.1)):
        model = LabelModel.load(cell.pretrained_folder, TOY, model_settings("prompt"), runtime(), asked).model
        assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {expected}


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (hf.OPTConfig(**SIZE, ffn_dim=32, word_embed_proj_dim=16, layerdrop=0.0), "layerdrop"),
        (hf.EsmConfig(**SIZE, pad_token_id=1, token_dropout=True), "token_dropout"),
    ],
)
def test_what_drops_something_else_than_units_stays(tmp_path, config, kept):
    folder = save_with_words(AUTO["standard"].from_config(config), tmp_path / "model")
    before, asked = (load_model(folder, "standard", dropout=dropout).config.to_dict() for dropout in (None, 0.37))
    assert asked[kept] == before[kept]
    assert {asked[name] for name in asked if name in ("dropout", "hidden_dropout_prob")} == {0.37}, "control"


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive", "generative"])
def test_weights_are_gone_with_the_last_who_holds_the_model(make_cell, mode):
    """A stage that takes one task after another would else hold the models of all: Python looks for cycles rarely."""
    cell = make_cell(mode)
    model = cell.load()
    model.logits(model.batch(model.encode(cell.rows["test"][:8])))
    weight, held = (weakref.ref(part) for part in (next(iter(model.parameters().values())), model))
    gc.collect()
    gc.disable()
    try:
        assert weight() is not None, "control"
        del model
        assert weight() is None and held() is None
    finally:
        gc.enable()
