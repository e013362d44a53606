"""Squared gradients of single examples, made a batch at a time, are those of a loop over examples."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from skill_grafting.support.fields import LAYERS
from stages.text.models import fisher
from stages.text.models.encoding import Example
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import loss_gradient
from stages.text.models.structure import groups_of
from tests.pico import TOY, model_settings, runtime, small_config, toy_rows, word_tokenizer

EXAMPLES = 9
FAMILIES = ["bert", "roberta", "gpt2", "llama"]


@pytest.fixture(params=FAMILIES)
def model(request) -> LabelModel:
    if request.param == "roberta":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            roberta = AutoModelForMaskedLM.from_config(small_config("roberta")).eval()
        return LabelModel(roberta, word_tokenizer(), TOY, "prompt", 32, runtime())
    mode = "prompt" if request.param == "bert" else "autoregressive"
    return LabelModel.load(request.getfixturevalue(f"pico_{request.param}"), TOY, model_settings(mode), runtime())


def layers_of(model: LabelModel) -> list[str]:
    return [name for name, group in groups_of(model).items() if group == LAYERS]


def slow_loop(model: LabelModel, examples: list[Example], names: list[str]) -> dict[str, Tensor]:
    """One example at a time through the ordinary training loss."""
    weights = model.train_only({*names})
    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for example in examples:
        loss_gradient(model, [example])
        for name, weight in weights.items():
            totals[name] += weight.grad**2
    return totals


def expected_loop(model: LabelModel, examples: list[Example], names: list[str]) -> dict[str, Tensor]:
    """The same for every label in the place of the true one, weighted by the model's probability of it."""
    totals = {name: torch.zeros_like(model.parameters()[name]) for name in names}
    for example in examples:
        probabilities = model.logits(model.batch([example])).softmax(1).detach()[0]
        for label, probability in enumerate(probabilities):
            for name, squares in slow_loop(model, [replace(example, label=label)], names).items():
                totals[name] += probability * squares
    return totals


def assert_close(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert {*actual} == {*wanted}
    # what is only rounding is compared as that: the bias of attention keys has no effect on any loss
    rounding = 1e-8 * max(float(values.max()) for values in wanted.values())
    for name, values in wanted.items():
        torch.testing.assert_close(actual[name], values, rtol=1e-4, atol=rounding, msg=name)


def forbid_loop(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("went one by one")

    monkeypatch.setattr(fisher, "_add_one_by_one", refuse)


def test_layers_go_a_batch_at_a_time_and_agree_with_the_loop(model, monkeypatch):
    forbid_loop(monkeypatch)
    examples, names = model.encode(toy_rows(EXAMPLES)), layers_of(model)
    wanted = slow_loop(model, examples, names)
    assert_close(squared_gradients(model, examples, names), wanted)
    loss_gradient(model, examples)
    batch = {name: (EXAMPLES * model.parameters()[name].grad) ** 2 for name in names}
    with pytest.raises(AssertionError):
        assert_close(batch, wanted)  # control: the square of the batch's gradient is something else


def test_expected_is_the_mean_over_the_models_own_labels(model, monkeypatch):
    forbid_loop(monkeypatch)
    examples, names = model.encode(toy_rows(EXAMPLES)), layers_of(model)
    wanted = expected_loop(model, examples, names)
    assert_close(squared_gradients(model, examples, names, "expected"), wanted)
    with pytest.raises(AssertionError):
        assert_close(squared_gradients(model, examples, names), wanted)  # control: true labels are something else


@pytest.mark.parametrize("mode", ["empirical", "expected"])
def test_parameters_that_no_layer_covers_go_one_by_one(pico_bert, monkeypatch, mode):
    model = LabelModel.load(pico_bert, TOY, model_settings("prompt"), runtime())
    examples = model.encode(toy_rows(EXAMPLES))
    tied = [name for name in model.parameters() if "word_embeddings" in name]
    positions = [name for name in model.parameters() if "position_embeddings" in name]
    assert tied and positions
    for names in (tied, [*positions, *layers_of(model)]):
        loop = slow_loop if mode == "empirical" else expected_loop
        assert_close(squared_gradients(model, examples, names, mode), loop(model, examples, names))
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match="one by one"):
            forbid_loop(patch)
            squared_gradients(model, examples, names, mode)


def test_a_head_of_its_own_that_computes_the_label_words_alone_agrees_with_the_loop(pico_llama):
    model = LabelModel.load(pico_llama, TOY, model_settings("autoregressive"), runtime())
    model.model.lm_head.weight = torch.nn.Parameter(model.model.lm_head.weight.detach().clone())
    examples, names = model.encode(toy_rows(EXAMPLES)), ["lm_head.weight", *layers_of(model)]
    found = squared_gradients(model, examples, names)
    assert_close(found, slow_loop(model, examples, names))
    assert int((found["lm_head.weight"].sum(1) > 0).sum()) == 2, "of the two label words alone"


def test_small_portions_and_batches_change_nothing(pico_bert, monkeypatch):
    model = LabelModel.load(pico_bert, TOY, model_settings("prompt"), runtime())
    examples, names = model.encode(toy_rows(EXAMPLES)), layers_of(model)
    whole = squared_gradients(model, examples, names)
    model.runtime = runtime(batch_tokens=16)
    for piece in (1, 100, 3 * 32 * 32):  # less than a row, some rows, some examples
        monkeypatch.setattr(fisher, "NUMBERS", piece)
        monkeypatch.setattr(fisher, "PIECE", piece)
        assert_close(squared_gradients(model, examples, names), whole)
    assert_close(whole, slow_loop(model, examples, names))
    with pytest.raises(AssertionError):
        assert_close(squared_gradients(model, examples[1:], names), whole)  # control: an example less


def test_bfloat16_arithmetic_gives_float32_sums_of_about_the_same_size(pico_bert, monkeypatch):
    forbid_loop(monkeypatch)
    model = LabelModel.load(pico_bert, TOY, model_settings("prompt"), runtime())
    examples, names = model.encode(toy_rows(EXAMPLES)), layers_of(model)
    whole = squared_gradients(model, examples, names)
    model.runtime = replace(model.runtime, precision=torch.bfloat16)
    rough = squared_gradients(model, examples, names)
    assert all(values.dtype == torch.float32 for values in rough.values())
    total = [sum(float(values.sum()) for values in squares.values()) for squares in (whole, rough)]
    assert total[0] != total[1] and total[1] == pytest.approx(total[0], rel=0.1)


def test_it_leaves_gradients_and_hooks_as_they_were(pico_bert):
    model = LabelModel.load(pico_bert, TOY, model_settings("prompt"), runtime())
    examples, names = model.encode(toy_rows(4)), layers_of(model)
    model.train_only({*names})
    loss_gradient(model, examples)
    before = {name: model.parameters()[name].grad.clone() for name in names}
    squared_gradients(model, examples, names)
    assert all(torch.equal(model.parameters()[name].grad, before[name]) for name in names)
    assert not any(module._forward_hooks for module in model.model.modules() if module is not model.model.base_model)
