"""The calibration error is the published one, and 0 for who is right as often as said; a temperature and WiSE-FT are its controls."""

from itertools import product

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from skill_grafting.calibration import calibration_floor, confidence_histogram, reliability, softmax
from stages.text.scores.predictions import Predictions, dev_set, read_predictions, write_predictions
from stages.text.scores.scores import cross_entropy
from stages.text.scores.temperature import GRAFT_TEMPERED, frontier, temperature, tempered
from stages.text.scores.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED, TEMPERED, WISE_FT, WISE_GRAFT

METHODS = [PRETRAINED, FINETUNED, MOVEMENT_GRAFTED, GRAFTED, TEMPERED, WISE_FT, f"{WISE_GRAFT}_0.5"]


def random_predictions(rows: int, labels: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(0, spread, (rows, labels)).astype(np.float32), generator.integers(0, labels, rows)


def calibrated(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from the probabilities that they say."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (rows, 3))
    return logits, (softmax(logits).cumsum(1) > generator.random((rows, 1))).argmax(1)


def ece(logits: np.ndarray, labels: np.ndarray) -> float:
    return reliability(logits, labels, 15).ece


def theirs(logits: np.ndarray, labels: np.ndarray) -> float:
    given = torch.from_numpy(softmax(logits)), torch.from_numpy(labels), logits.shape[1]
    return float(multiclass_calibration_error(*given, n_bins=15, norm="l1"))


@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0, 30.0])
def test_ece_is_that_of_torchmetrics(labels, spread):
    for seed in range(3):
        logits, truth = random_predictions(500, labels, spread, seed)
        assert ece(logits, truth) == pytest.approx(theirs(logits, truth), abs=1e-5)
    assert ece(logits, truth) != pytest.approx(theirs(logits, (truth + 1) % labels), abs=1e-5), "control"


@pytest.mark.parametrize("logits", [[[0.0, 800.0]], [[0.0, 0.0]], [[1e4, -1e4], [3.0, 3.0]]])
def test_ece_of_certain_and_undecided_rows_is_that_of_torchmetrics(logits):
    for label in (0, 1):
        rows = np.array(logits), np.full(len(logits), label)
        assert ece(*rows) == pytest.approx(theirs(*rows), abs=1e-6)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    assert reliability(np.zeros((1, 2)), np.array([0]), 2).count.tolist() == [1, 0]
    assert reliability(np.array([[0.0, 1e-9]]), np.array([0]), 2).count.tolist() == [0, 1], "control: just above it"
    assert reliability(np.array([[0.0, 800.0]]), np.array([0]), 15).count.tolist() == [0] * 14 + [1]
    assert reliability(np.zeros((1, 4)), np.array([0]), 4).count.tolist() == [1, 0, 0, 0]


def test_a_calibrated_predictor_has_no_error_and_an_overconfident_one_has():
    logits, labels = calibrated(40_000)
    assert ece(logits, labels) < 0.015
    assert ece(logits * 4, labels) > 0.1 < ece(logits / 4, labels)


def test_bins_hold_every_row_and_its_means():
    logits, labels = random_predictions(300, 3, 1.0, 0)
    table = reliability(logits, labels, 10)
    confidence, right = softmax(logits).max(1), softmax(logits).argmax(1) == labels
    assert table.count.sum() == 300 and len(table.count) == 10
    for number in range(10):
        inside = (confidence > number / 10) & (confidence <= (number + 1) / 10)
        assert table.count[number] == inside.sum()
        if inside.any():
            assert table.confidence[number] == pytest.approx(confidence[inside].mean())
            assert table.accuracy[number] == pytest.approx(right[inside].mean())
        else:
            assert table.confidence[number] == table.accuracy[number] == 0


def test_histogram_holds_every_row():
    logits, _ = random_predictions(300, 2, 1.0, 0)
    bars = confidence_histogram(np.vstack([logits, [[0, 0], [0, 900]]]), 20)
    assert bars.sum() == 302 and len(bars) == 20 and bars[-1] >= 1 and bars[10] >= 1
    assert not bars[:10].any(), "with two labels the top one has at least one half"


def by_enumeration(count: int, confidence: float) -> float:
    """Mean |right - expected| over every outcome of the rows of a bin."""
    outcomes = np.array([*product([0, 1], repeat=count)])
    chances = np.where(outcomes, confidence, 1 - confidence).prod(1)
    return float(chances @ np.abs(outcomes.sum(1) - count * confidence))


@pytest.mark.parametrize("confidence", [0.5, 0.61, 0.75, 0.999, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_floor_is_the_mean_error_over_every_outcome_of_calibrated_bins(count, confidence):
    wanted = by_enumeration(count, confidence)
    assert calibration_floor([count], [confidence]) == pytest.approx(wanted / count, abs=1e-12)
    other = by_enumeration(5, 0.7)
    three = calibration_floor([count, 0, 5], [confidence, 0.0, 0.7])
    assert three == pytest.approx((wanted + other) / (count + 5), abs=1e-12), "weighted by rows, empty bins left out"


@pytest.mark.parametrize("rows", [150, 600])
def test_calibrated_predictions_have_the_floor_as_error_and_it_falls_with_the_rows(rows):
    drawn = [reliability(*calibrated(rows, seed), 15) for seed in range(400)]
    floors, errors = [calibration_floor(one.count, one.confidence) for one in drawn], [one.ece for one in drawn]
    assert np.mean(errors) == pytest.approx(np.mean(floors), abs=4 * np.std(errors) / len(errors) ** 0.5)
    logits, labels = calibrated(rows)
    sure = reliability(4 * logits, labels, 15)
    assert sure.ece > 2 * calibration_floor(sure.count, sure.confidence), "the control: of who is too sure it is less than the error"
    assert calibration_floor(100 * sure.count, sure.confidence) < 0.15 * calibration_floor(sure.count, sure.confidence)


# --- Controls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_what_made_a_model_too_sure(factor):
    logits, labels = calibrated(20_000)
    found = temperature(factor * logits, labels)
    assert found == pytest.approx(factor, rel=0.05)
    losses = [cross_entropy(factor * logits / (found * step), labels) for step in (0.9, 1.0, 1.1)]
    assert losses[1] == min(losses), "control: warmer and colder are worse"


def test_the_loss_of_a_sure_model_is_not_lost_in_float32():
    assert cross_entropy(np.array([[20, 0]], np.float32), np.array([0])) == pytest.approx(np.exp(-20.0), rel=1e-6)


def test_the_temperature_stays_finite_where_all_rows_are_right():
    assert 0 < temperature(np.eye(4) * 5, np.arange(4)) < 0.2


def cell(rows: int) -> tuple[Predictions, Predictions]:
    """Predictions on test rows and on dev rows; the graft is too sure by 2."""
    parts = []
    for seed in (1, 2):
        logits, labels = calibrated(rows, seed)
        variants = {name: (logits * (2 if name == GRAFTED else 1)).astype(np.float32) for name in METHODS}
        parts.append(Predictions(["a", "b", "c"], {"toy": labels}, {"toy": variants}))
    return parts[0], parts[1]


def test_the_frontier_has_a_row_for_each_model_and_what_it_was_fitted_to():
    tests, dev = cell(4000)
    record = {"temperature": 1.5, "wise_alpha": 0.3, "scores": {"toy": {name: {"score": 0.5} for name in METHODS}}}
    rows = frontier(tests, dev, "toy", record, bins=15)
    assert [row["method"] for row in rows] == [*METHODS[:5], GRAFT_TEMPERED, WISE_FT] + 3 * [WISE_GRAFT]
    by_method = {row["method"]: row for row in rows[:7]}
    assert [row["alpha"] for row in rows[7:]] == [0, 0.5, 1] and by_method[WISE_FT]["alpha"] == 0.3
    assert by_method[TEMPERED]["temperature"] == 1.5
    on_dev, on_tests = (temperature(part.logits["toy"][GRAFTED], part.labels["toy"]) for part in (dev, tests))
    assert by_method[GRAFT_TEMPERED]["temperature"] == on_dev == pytest.approx(2, rel=0.1) and on_dev != on_tests
    assert by_method[GRAFT_TEMPERED]["ece"] < 0.03 < 0.05 < by_method[GRAFTED]["ece"], "control: without it"
    assert rows[9] == {**by_method[GRAFTED], "method": WISE_GRAFT, "alpha": 1.0}


def test_a_tempered_model_predicts_as_before_and_less_surely():
    tests, _ = cell(100)
    cooled = tempered(tests, 3.0).logits["toy"][TEMPERED]
    assert np.array_equal(cooled.argmax(1), tests.logits["toy"][FINETUNED].argmax(1))
    assert np.allclose(3 * cooled, tests.logits["toy"][FINETUNED], atol=1e-5)


def test_dev_rows_are_no_test_set(tmp_path):
    """They stand in the same file, and who reads test sets doesn't meet them."""
    tests, dev = cell(5)
    name = dev_set("toy")
    labels, logits = tests.labels | {name: dev.labels["toy"]}, tests.logits | {name: dev.logits["toy"]}
    write_predictions(tmp_path / "a.safetensors", Predictions(tests.label_names, labels, logits))
    read = [read_predictions(tmp_path / "a.safetensors", dev=which) for which in (False, True)]
    for part, wanted in zip(read, (tests, dev), strict=True):
        assert [*part.labels] == ["toy"] == [*part.logits]
        assert np.array_equal(part.labels["toy"], wanted.labels["toy"])
        assert np.array_equal(part.logits["toy"][GRAFTED], wanted.logits["toy"][GRAFTED])
