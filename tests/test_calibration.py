"""The calibration error is the published one, and is 0 for who is right as often as said."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from stages.lib.metrics.classification import confidence_histogram, reliability, softmax


def random_predictions(rows: int, labels: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(0, spread, (rows, labels)).astype(np.float32), generator.integers(0, labels, rows)


def drawn_from_itself(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from the predicted probabilities: calibrated by construction."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, (rows, 3))
    labels = (softmax(logits).cumsum(1) > generator.random((rows, 1))).argmax(1)
    return logits, labels


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
    logits, labels = drawn_from_itself(40_000)
    assert ece(logits, labels) < 0.015
    assert ece(logits * 4, labels) > 0.1 < ece(logits / 4, labels)


def test_neither_the_order_of_rows_nor_a_constant_added_to_a_rows_logits_matters():
    logits, labels = random_predictions(300, 3, 1.0, 0)
    order = np.random.default_rng(1).permutation(300)
    assert ece(logits[order], labels[order]) == pytest.approx(ece(logits, labels), abs=1e-12)
    assert ece(logits[order], labels) != pytest.approx(ece(logits, labels), abs=1e-6), "control"
    shifted = logits.astype(float) + np.random.default_rng(2).normal(0, 100, (300, 1))
    assert ece(shifted, labels) == pytest.approx(ece(logits, labels), abs=1e-9)


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
