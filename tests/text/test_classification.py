"""Accuracy, F1 and agreement are the usual ones; predictions on disk come back as they were."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torchmetrics.functional.classification import binary_f1_score, multiclass_accuracy, multiclass_f1_score

from skill_grafting.support.errors import DataError
from stages.text.scores.classification import accuracy, f1
from stages.text.scores.predictions import Predictions, read_predictions, write_predictions
from stages.text.scores.scores import constant_scores, score_rows, standard_error
from stages.text.scores.variants import FINETUNED
from tests.pico import TOY


def drawn(labels: int, seed: int = 0, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, labels, rows)
    return generator.normal(0, 1, (rows, labels)) + 1.2 * np.eye(labels)[truth], truth


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_accuracy_and_macro_f1_are_those_of_torchmetrics(labels):
    logits, truth = drawn(labels)
    both = torch.from_numpy(logits.argmax(1)), torch.from_numpy(truth), labels
    assert accuracy(logits, truth) == pytest.approx(float(multiclass_accuracy(*both, average="micro")))
    assert f1(logits, truth, None) == pytest.approx(float(multiclass_f1_score(*both, average="macro")))
    assert 0.4 < accuracy(logits, truth) < 1 and f1(logits, truth, None) != accuracy(logits, truth), "control"


def test_macro_f1_is_over_the_labels_that_are_predicted_or_present():
    logits, truth = np.eye(3)[[0, 1, 1, 0]], np.array([0, 1, 1, 0])
    assert f1(logits, truth, None) == 1, "as scikit-learn's, though no row is of the third"
    assert f1(np.eye(3)[[0, 1, 1, 2]], truth, None) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert f1(logits, truth, 2) == 0, "of a label that never occurs"


@pytest.mark.parametrize("positive", [0, 1])
def test_f1_of_one_label_is_the_binary_f1_of_torchmetrics(positive):
    logits, truth = drawn(2, rows=51)
    theirs = binary_f1_score(*(torch.from_numpy((of == positive).astype(int)) for of in (logits.argmax(1), truth)))
    assert f1(logits, truth, positive) == pytest.approx(float(theirs)) != pytest.approx(f1(logits, truth, 1 - positive))




@pytest.mark.parametrize(
    ("metric", "majority", "constant"), [("accuracy", 0.7, 0.7), ("f1", 0.7, 2 * 0.3 / 1.3), ("mcc", 0.7, 0.0)]
)
def test_a_constant_predictor_is_scored_by_the_metric_of_the_task(metric, majority, constant):
    labels = np.array([0] * 7 + [1] * 3)
    task = TOY.model_copy(update={"metric": metric, "positive": "positive"})
    found = constant_scores(labels, TOY.labels, task)
    assert found == {"majority": majority, "constant": pytest.approx(constant)}
    always = {"one": np.eye(2)[[1] * 10].astype(np.float32), FINETUNED: np.eye(2)[labels].astype(np.float32)}
    rows = {
        row["variant"]: row for row in score_rows(Predictions(TOY.labels, {"toy": labels}, {"toy": always}), task, 5)
    }
    assert all((row["majority"], row["constant"]) == (majority, pytest.approx(constant)) for row in rows.values())
    assert rows["one"]["score"] <= rows["one"]["constant"] < rows[FINETUNED]["score"] == 1


def test_no_share_is_kept_of_a_score_of_nothing_or_less():
    labels, right = np.arange(10) % 2, np.eye(2, dtype=np.float32)[np.arange(10) % 2]
    task = TOY.model_copy(update={"metric": "mcc"})
    scores = score_rows(Predictions(TOY.labels, {"toy": labels}, {"toy": {FINETUNED: -right, "one": right}}), task, 5)
    assert [(row["score"], row["retained"]) for row in scores] == [(pytest.approx(-1), None), (pytest.approx(1), None)]


def test_standard_error_is_that_of_many_draws():
    draws = np.random.default_rng(0).binomial(400, 0.8, 20_000) / 400
    assert standard_error(0.8, 400) == pytest.approx(draws.std(), rel=0.03)
    assert standard_error(0.2, 4) == pytest.approx(0.2)
    assert standard_error(1.0, 400) == 0




# stored predictions


@pytest.fixture
def predictions():
    logits = {name: drawn(2, seed)[0].astype(np.float32) for seed, name in enumerate(["pretrained", "finetuned"])}
    labels = {"toy": drawn(2)[1], "far.away": np.array([1, 0])}
    return Predictions(["bad", "good"], labels, {"toy": logits, "far.away": {"finetuned": np.eye(2, dtype=np.float32)}})


def test_predictions_are_read_as_they_were_written(tmp_path, predictions):
    write_predictions(tmp_path / "p", predictions)
    again, first = read_predictions(tmp_path / "p"), (tmp_path / "p").read_bytes()
    assert again.label_names == predictions.label_names and again.labels.keys() == predictions.labels.keys()
    assert all(np.array_equal(again.labels[name], predictions.labels[name]) for name in predictions.labels)
    for name, variants in predictions.logits.items():
        assert again.logits[name].keys() == variants.keys()
        assert all(np.array_equal(again.logits[name][variant], logits) for variant, logits in variants.items())
    write_predictions(tmp_path / "p", again)
    assert (tmp_path / "p").read_bytes() == first


def test_joining_puts_variants_of_the_same_rows_together(predictions):
    grafted = {name: {"grafted": variants["finetuned"]} for name, variants in predictions.logits.items()}
    joined = predictions | Predictions(predictions.label_names, predictions.labels, grafted)
    assert [*joined.logits["toy"]] == ["pretrained", "finetuned", "grafted"]
    assert "grafted" not in predictions.logits["toy"]


def test_joining_refuses_other_rows_labels_and_sets(predictions):
    names, labels = predictions.label_names, predictions.labels
    for other in (
        (names[::-1], labels),
        (names, {**labels, "toy": 1 - labels["toy"]}),
        (names, {**labels, "toy": labels["toy"][:-1]}),
        (names, {"toy": labels["toy"]}),
    ):
        with pytest.raises(DataError, match="different test rows"):
            predictions | Predictions(*other, predictions.logits)
    assert (predictions | predictions).labels is predictions.labels, "control"


@pytest.mark.parametrize("share", [None, 0.0, 0.2, 0.7, 0.99])
def test_missing_and_truncated_predictions_are_named(tmp_path, predictions, share):
    file = tmp_path / "p"
    if share is not None:
        write_predictions(file, predictions)
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(DataError, match="no such predictions" if share is None else "damaged") as caught:
        read_predictions(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "header"), [("labels/a", {}), ("other", {"label_names": []}), ("logits/a", {"label_names": []})]
)
def test_other_files_are_not_predictions(tmp_path, name, header):
    save_file({"labels/a": np.zeros(2)}, tmp_path / "p", metadata={"predictions": '{"label_names": []}'})
    read_predictions(tmp_path / "p")  # the control
    save_file({name: np.zeros(2)}, tmp_path / "p", metadata={"predictions": json.dumps(header)})
    with pytest.raises(DataError, match="damaged"):
        read_predictions(tmp_path / "p")
