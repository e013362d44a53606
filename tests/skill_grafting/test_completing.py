"""Completions, token by token: teacher forcing is greedy decoding, and what is trained, grafted and stored is of every token."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from skill_grafting.calibration import reliability
from skill_grafting.support.errors import DataError, ModelError
from stages.text.models.encoding import Example, encode_completions, label_completions
from stages.text.models.evaluation import targets_of, token_temperature
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import loss_gradient, predict_tokens
from stages.text.scores.classification import TARGETS, TOKEN_RECORD, accuracy
from stages.text.scores.predictions import Predictions, read_predictions, write_predictions
from stages.text.scores.scores import (
    agreement,
    classification_scores,
    error_over_rows,
    score_rows,
    standard_error,
    token_scores,
    usual_completion,
)
from stages.text.scores.variants import FINETUNED, GRAFTED
from stages.text.tasks.tasks import TaskSpec
from tests.pico import TOY, byte_tokenizer, prepending_tokenizer, runtime, toy_rows

BYTES = byte_tokenizer()
WORDS = {"negative": "awful and dull", "positive": "good"}
LONG = TOY.model_copy(update={"causal_prompt": TOY.causal_prompt.model_copy(update={"verbalizer": WORDS})})
PLAIN = TaskSpec(name="plain", title="Plain", kind="plain", labels=[])


def plain(prompt: str, completion: str) -> dict:
    return {"sentence1": prompt, "sentence2": None, "label": completion}


def said(ids) -> str:
    return BYTES.decode([*ids], clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def model(make_cell) -> LabelModel:
    return make_cell("generative").load()


@pytest.fixture(scope="module")
def examples(make_cell, model):
    return model.encode(make_cell("generative").rows["test"][:40])


# --- Encoding -----------------------------------------------------------------------------------------------------


def test_a_label_word_of_any_number_of_tokens_and_an_end_follow_the_template():
    one, two = encode_completions(toy_rows(2), LONG, BYTES, 32)
    assert [said(example.completion) for example in (one, two)] == [" awful and dull<|end|>", " good<|end|>"]
    for example in (one, two):
        assert said(example.input_ids[: example.position + 1]).endswith(" It was")
        assert example.input_ids[example.position + 1 :] == [*example.completion[:-1]]


def test_what_is_cut_does_not_tell_the_label():
    text = " ".join(["film"] * 40)
    one, two = encode_completions([plain(text, label) for label in TOY.labels], LONG, BYTES, 20)
    assert one.input_ids[: one.position + 1] == two.input_ids[: two.position + 1]
    assert len(one.input_ids) == 20 > len(two.input_ids), "control: their completions differ"


def test_prompts_are_cut_from_the_left_and_completions_never():
    (whole,) = encode_completions([plain("the film was it", "good and dull")], PLAIN, BYTES, 32)
    (cut,) = encode_completions([plain("the film was it", "good and dull")], PLAIN, BYTES, 5)
    assert said(whole.input_ids) == "the film was it good and dull" and len(cut.input_ids) == 5
    assert said(cut.input_ids) == " was it good and dull" and cut.completion == whole.completion


@pytest.mark.parametrize(
    ("prompt", "completion", "joined"),
    [("it was", "good", "it was good"), ("it was ", " good \n", "it was good"), ("it was:\n", "good", "it was:\ngood")],
)
def test_one_space_or_a_line_break_stands_between(prompt, completion, joined):
    (example,) = encode_completions([plain(prompt, completion)], PLAIN, BYTES, 32)
    assert said([*example.input_ids, example.completion[-1]]) == joined + "<|end|>"


@pytest.mark.parametrize(("task", "label"), [(PLAIN, "good"), (LONG, "positive")])
def test_a_tokenizer_that_puts_a_space_before_every_text_gets_no_other(task, label):
    tokenizer = prepending_tokenizer()
    (example,) = encode_completions([plain("it was", label)], task, tokenizer, 32)
    assert tokenizer.convert_ids_to_tokens(example.completion) == ["▁good", "</s>"]


def test_completions_that_do_not_fit_are_counted_in_one_line():
    rows = [plain("it", "good"), plain("it", "good and dull and cold"), plain("it", "good " * 9)]
    encode_completions(rows, PLAIN, BYTES, 32)  # control
    wanted = "task plain: 2 of 3 completions don't fit into model.max_length=5, the longest with 10 tokens: 'good good"
    with pytest.raises(DataError, match=wanted):
        encode_completions(rows, PLAIN, BYTES, 5)


def test_labels_that_a_tokenizer_cannot_tell_apart_are_refused():
    assert len(label_completions(LONG.causal_prompt, LONG.labels, BYTES)) == 2
    same = LONG.causal_prompt.model_copy(update={"verbalizer": {"negative": "good", "positive": "good"}})
    with pytest.raises(ModelError, match=r"^verbalizer: 'good' \(label 'positive'\) has the tokens of 'good' \(label"):
        label_completions(same, LONG.labels, BYTES)
    with pytest.raises(DataError, match="label 'fine' is not one of negative, positive"):
        encode_completions([plain("a", "fine")], LONG, BYTES, 32)


# --- Theorems -----------------------------------------------------------------------------------------------------


def written(model: LabelModel, example: Example, length: int) -> tuple[int, ...]:
    """The completion of a prompt by greedy decoding."""
    prompt = torch.tensor([example.input_ids[: example.position + 1]])
    ids = model.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=length, pad_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return tuple(ids[0, prompt.shape[1] :].tolist())


def forced(model: LabelModel, examples: list[Example]) -> list[bool]:
    """For each row, if every token of its completion is the most probable one after those before it."""
    told, targets = predict_tokens(model, examples), targets_of(examples)
    right = told["predicted"] == targets["target"]
    assert accuracy(told, targets) == np.mean([right[targets["row"] == row].all() for row in range(len(examples))])
    return [bool(right[targets["row"] == row].all()) for row in range(len(examples))]


@pytest.mark.parametrize("which", ["pretrained", "finetuned"])
def test_teacher_forcing_tells_what_greedy_decoding_writes(make_cell, examples, which):
    model, examples = make_cell("generative").load(which), examples[:12]
    matches = [written(model, example, len(example.completion)) == example.completion for example in examples]
    assert forced(model, examples) == matches and any(matches) == (which == "finetuned")
    own, spoilt = [], []
    for number, example in enumerate(examples):
        ids, prompt = written(model, example, 5), example.input_ids[: example.position + 1]
        other = list(ids)
        other[number % len(ids)] = (other[number % len(ids)] + 1) % 100
        for found, completion in ((own, ids), (spoilt, tuple(other))):
            found.append(replace(example, input_ids=[*prompt, *completion[:-1]], completion=completion))
    assert all(forced(model, own)) and not any(forced(model, spoilt)), "a single other token, wherever it stands"


def test_batches_and_order_change_nothing(make_cell, examples):
    alone = predict_tokens(make_cell("generative").load(batch_tokens=16), examples)
    together = predict_tokens(make_cell("generative").load(), examples)
    assert np.array_equal(alone["predicted"], together["predicted"])
    assert np.allclose(alone["log_probability"], together["log_probability"], atol=1e-5)
    backwards = predict_tokens(make_cell("generative").load(), examples[::-1])
    assert not np.array_equal(backwards["predicted"], together["predicted"]), "control: rows differ"


def test_records_are_those_of_the_whole_logits(model, examples):
    told, targets, at = predict_tokens(model, examples), targets_of(examples), 0
    for example in examples[:5]:
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([[*example.input_ids]])).logits[0]
        for place, token in enumerate(example.completion):
            logs = logits[example.position + place].log_softmax(0)
            assert told[at]["predicted"] == int(logs.argmax()) and targets[at]["target"] == token
            assert told[at]["log_probability"] == pytest.approx(float(logs[token]), abs=1e-5)
            assert told[at]["confidence"] == pytest.approx(float(logs.max().exp()), abs=1e-5)
            at += 1


def test_one_token_without_an_end_is_autoregressive_over_the_whole_vocabulary(make_cell):
    """Its logits, taken at the label words, are autoregressive's; so its gradient is that of autoregressive's cross-entropy
    with every other token of the vocabulary as one more label."""
    cell = make_cell("generative")
    rows, model = cell.rows["train"][:12], cell.load()
    short = []
    for one in model.encode(rows):
        short.append(replace(one, input_ids=one.input_ids[: one.position + 1], completion=one.completion[:1]))
    labelled = LabelModel(cell.load().model, model.tokenizer, TOY, "autoregressive", 32, runtime())
    theirs = labelled.encode(rows)
    assert [one.input_ids for one in short] == [one.input_ids for one in theirs]
    told, logits = model.logits(model.batch(short)), labelled.logits(labelled.batch(theirs))
    assert torch.allclose(told[:, labelled._word_ids], logits, rtol=0, atol=1e-5)
    assert not torch.allclose(told[:, labelled._word_ids.flip(0)], logits, atol=1e-2), "control: the other word"
    gradients = []
    for reader, read, ids in ((model, short, None), (labelled, theirs, torch.arange(told.shape[1]))):
        if ids is not None:  # every token is a label word
            read = [replace(one, label=int(reader._word_ids[one.label])) for one in read]
            reader._word_ids = ids
        weights = reader.train_only({*cell.region.shapes})
        loss = float(loss_gradient(reader, read))
        gradients.append((loss, {name: weight.grad.clone() for name, weight in weights.items()}))
    (loss, ours), (other, others) = gradients
    assert loss == other and all(torch.equal(ours[name], others[name]) for name in ours)
    loss_gradient(model, model.encode(rows))
    assert any(not torch.equal(model.parameters()[name].grad, ours[name]) for name in ours), "control"


@pytest.mark.parametrize("mode", ["empirical", "sampled", "label_logit"])
def test_squared_gradients_are_those_of_each_row_alone(make_cell, mode):
    cell = make_cell("generative")
    model, name = cell.load(), next(name for name in cell.region.shapes if "down_proj" in name)
    examples = model.encode(cell.rows["train"][:6])
    found = squared_gradients(model, examples, [name], mode, 2, np.random.default_rng(0))[name]
    if mode != "empirical":  # one row at a time, by another way: the vocabulary head is asked for, too
        names = [name, "model.embed_tokens.weight"]
        other = squared_gradients(model, examples, names, mode, 2, np.random.default_rng(0))[name]
        assert torch.allclose(other, found, rtol=1e-4)
        return
    total = torch.zeros_like(found)
    for example in examples:
        model.train_only({name})
        loss_gradient(model, [example])
        total += (model.parameters()[name].grad * len(example.completion)) ** 2
    assert torch.allclose(found, total, rtol=1e-4, atol=1e-9)
    with pytest.raises(ModelError, match="take 'sampled'"):
        squared_gradients(model, examples, [name], "expected")


# --- Measures -----------------------------------------------------------------------------------------------------


def records(rows: list[list[tuple[int, int]]], confidence: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """TOLD and TARGETS of rows of (predicted, target); the reference has the confidence where it is predicted, else 0.1."""
    pairs = [(number, *pair) for number, row in enumerate(rows) for pair in row]
    logs = [np.log(confidence if said == target else 0.1) for _, said, target in pairs]
    told = np.array([(said, confidence, log) for (_, said, _), log in zip(pairs, logs, strict=True)], TOKEN_RECORD)
    return told, np.array([(row, target) for row, _, target in pairs], TARGETS)


def test_measures_by_hand():
    told, targets = records([[(1, 1), (2, 2)], [(3, 3), (4, 5)], [(6, 7), (8, 8)], [(3, 3), (5, 5)]])
    assert accuracy(told, targets) == 0.5 and usual_completion(targets) == 0.5
    scores = token_scores(told, targets, told)
    assert scores["tokens"] == 8 and scores["token_accuracy"] == 0.75
    assert scores["perplexity"] == pytest.approx((0.5**6 * 0.1**2) ** (-1 / 8), rel=1e-5)
    assert reliability(told, targets, 10).ece == pytest.approx(0.25)
    other = told.copy()
    other["predicted"][0] = 9
    assert agreement(told, other) == 7 / 8


def test_the_error_is_over_rows():
    """The same tokens twice in a row tell nothing new; twice in other rows they do."""
    values, rows = np.array([1.0, 0, 1, 1, 0]), np.arange(5)
    once = error_over_rows(values, rows)
    assert once == pytest.approx(values.std(ddof=1) / 5**0.5), "one token a row: the plain error of a mean"
    assert error_over_rows(np.repeat(values, 2), np.repeat(rows, 2)) == pytest.approx(once)
    assert error_over_rows(np.repeat(values, 2), np.arange(10)) < once, "control"
    assert error_over_rows(values, np.zeros(5, int)) is None


def test_the_temperature_is_the_best_one_and_changes_no_token(model, examples):
    degrees = token_temperature(model, examples, (-5.0, 5.0))
    losses = {factor: -predict_tokens(model, examples, degrees=degrees * factor)["log_probability"].mean(dtype=float) for factor in (0.98, 1, 1.02)}  # fmt: skip
    assert losses[1] < losses[0.98] and losses[1] < losses[1.02]
    tempered, plain = predict_tokens(model, examples, degrees=degrees), predict_tokens(model, examples)
    assert np.array_equal(tempered["predicted"], plain["predicted"])


def test_records_are_stored_to_the_bit_and_scored(tmp_path, model, examples):
    told, targets = predict_tokens(model, examples), targets_of(examples)
    half = told.copy()
    half["predicted"][::2] = 5
    logits = {"toy": {FINETUNED: told, GRAFTED: half}, "toy:dev": {FINETUNED: told[:4]}}
    kept = Predictions(TOY.labels, {"toy": targets, "toy:dev": targets[:4]}, logits)
    write_predictions(tmp_path / "p.safetensors", kept)
    read, dev = (read_predictions(tmp_path / "p.safetensors", dev) for dev in (False, True))
    assert np.array_equal(read.labels["toy"], targets) and np.array_equal(read.logits["toy"][GRAFTED], half)
    assert [*read.labels] == [*dev.labels] == ["toy"] and np.array_equal(dev.logits["toy"][FINETUNED], told[:4])
    assert (tmp_path / "p.safetensors").stat().st_size < 100 * len(told), "no logits over the vocabulary"
    scores = classification_scores(read, TOY)["toy"]
    assert scores[FINETUNED]["agreement"] == 1.0 and scores[GRAFTED]["agreement"] < 0.6
    assert scores[FINETUNED]["n"] == 40 < scores[FINETUNED]["tokens"] == len(told)
    assert scores[FINETUNED]["score"] == accuracy(told, targets) and scores[FINETUNED]["f1"] is None
    assert scores[FINETUNED]["accuracy_se"] == standard_error(accuracy(told, targets), 40) > 0, "of rows"
    row = score_rows(read, TOY, 15)[0]
    assert np.exp(row["loss"]) == pytest.approx(row["perplexity"])
    with pytest.raises(DataError, match="different test rows"):
        _ = read | Predictions(TOY.labels, {"toy": targets[:-1]}, {"toy": {FINETUNED: told[:-1]}})
