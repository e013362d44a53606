"""Two controls for the calibration of a graft, a temperature and WiSE-FT: fitted on dev, stored beside the grafts."""

import numpy as np
import pytest
from scipy.special import log_softmax

from stages.lib.metrics.predictions import Predictions, dev_set, read_predictions, write_predictions
from stages.lib.metrics.scores import cross_entropy
from stages.lib.metrics.temperature import GRAFT_TEMPERED, frontier, temperature, tempered
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED, TEMPERED, WISE_FT, WISE_GRAFT

METHODS = [PRETRAINED, FINETUNED, MOVEMENT_GRAFTED, GRAFTED, TEMPERED, WISE_FT, f"{WISE_GRAFT}_0.5"]


def calibrated(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are log-probabilities of labels drawn from them."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, 3))
    odds = np.exp(log_softmax(logits, axis=1)).cumsum(1)
    return logits, (odds > random.random((rows, 1))).argmax(1)


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_what_made_a_model_too_sure(factor):
    logits, labels = calibrated(20_000)
    found = temperature(factor * logits, labels)
    assert found == pytest.approx(factor, rel=0.05)
    losses = [cross_entropy(factor * logits / (found * step), labels) for step in (0.9, 1.0, 1.1)]
    assert losses[1] == min(losses), "control: warmer and colder are worse"


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
    assert by_method[GRAFT_TEMPERED]["temperature"] == pytest.approx(2, rel=0.1)
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
