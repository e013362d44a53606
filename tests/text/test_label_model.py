"""A LabelModel gives the stock model's own logits, the label words' rows alone where it can, and knows its parameters."""

import gc
import weakref

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from skill_grafting.models.loading import load_model
from skill_grafting.models.probing import most_tokens
from skill_grafting.support.errors import ModelError
from stages.text.models.batching import Batch
from stages.text.models.encoding import Example
from stages.text.models.importing import import_model
from stages.text.models.label_model import LabelModel, reset_to_pretrained
from stages.text.models.predicting import dev_score, predict
from stages.text.models.visibility import Reader
from tests.pico import (
    TOY,
    model_settings,
    runtime,
    same,
    save_with_words,
    small_config,
    toy_rows,
    values_of,
)

AUTO = {"standard": hf.AutoModelForSequenceClassification, "prompt": hf.AutoModelForMaskedLM, "autoregressive": hf.AutoModelForCausalLM}  # fmt: skip


MODES = ["standard", "prompt", "autoregressive"]


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


CONFIGS = {kind: small_config(kind) for kind in ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "gpt2", "llama")}
HEADS = {
    **{name: ("prompt", CONFIGS[name], True) for name in ("bert", "roberta", "distilbert", "mpnet")},
    **{name: ("autoregressive", CONFIGS[name], True) for name in ("gpt2", "llama")},
    "a tanh behind it": ("autoregressive", small_config("gemma2", final_logit_softcapping=0.5), True),
    "a bias of its own behind it": ("prompt", small_config("esm", mask_token_id=4), False),
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


@pytest.mark.parametrize(("mode", "rounded"), [("standard", True), ("prompt", False)])
def test_bfloat16_computes_roughly_and_keeps_float32_weights_and_logits_of_words(make_cell, mode, rounded):
    cell = make_cell(mode)
    model = cell.load()
    examples = model.encode(cell.rows["test"][:30])
    exact = predict(model, examples)
    model.runtime = model.runtime.__class__(model.runtime.device, torch.bfloat16, 2048)
    rough = predict(model, examples)
    assert rough.dtype == torch.float32 and not torch.equal(rough, exact) and torch.allclose(rough, exact, atol=0.5)
    assert {weight.dtype for weight in model.parameters().values()} == {torch.float32}
    assert torch.equal(rough, rough.bfloat16().float()) == rounded, "two words would often have one logit"


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
    source = save_with_words(hf.AutoModelForMaskedLM.from_config(CONFIGS["xlm-roberta"]), tmp_path / "model")
    anatomy = import_model(source, model_settings("prompt"), tmp_path / "out")
    assert {*load_file(tmp_path / "out/model.safetensors")} == {*anatomy.groups}
    model = LabelModel.load(tmp_path / "out", TOY, model_settings("prompt"), runtime())
    before = values_of(model)
    model.put({name: values + 1 for name, values in before.items()})
    reset_to_pretrained(model, anatomy, tmp_path / "out")
    assert same(values_of(model), before)
    torch_names = [name for name, _ in model.model.named_parameters()]
    assert "lm_head.decoder.weight" in torch_names and torch_names != [*before], "control: torch calls it otherwise"


@pytest.mark.parametrize(("kind", "mode", "most"), [
    ("bert", "prompt", 66), ("roberta", "prompt", 65), ("mpnet", "prompt", 64), ("distilbert", "prompt", 66),
    ("gpt2", "autoregressive", 66), ("llama", "autoregressive", None),
])  # fmt: skip
def test_the_longest_text_is_what_the_model_has_positions_for(kind, mode, most):
    model = AUTO[mode].from_config(CONFIGS[kind]).eval()
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


def test_dropout_is_what_was_asked_for(make_cell):
    cell = make_cell("prompt")
    for asked, expected in ((0.37, 0.37), (0.0, 0.0), (None, 0.1)):
        model = LabelModel.load(cell.pretrained_folder, TOY, model_settings("prompt"), runtime(), asked).model
        assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {expected}


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (small_config("opt", layerdrop=0.0), "layerdrop"),
        (small_config("esm", token_dropout=True), "token_dropout"),
    ],
)
def test_what_drops_something_else_than_units_stays(tmp_path, config, kept):
    folder = save_with_words(AUTO["standard"].from_config(config), tmp_path / "model")
    before, asked = (load_model(folder, "standard", dropout=dropout).config.to_dict() for dropout in (None, 0.37))
    assert asked[kept] == before[kept]
    assert {asked[name] for name in asked if name in ("dropout", "hidden_dropout_prob")} == {0.37}, "control"


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive"])
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
