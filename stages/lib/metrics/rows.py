"""Scores as tidy rows: one for each (test set, variant), ready for a data frame."""

from typing import Any

import numpy as np

from stages.lib.data.tasks import TaskSpec
from stages.lib.metrics.calibration import reliability
from stages.lib.metrics.predictions import Predictions
from stages.lib.metrics.scores import classification_scores

Row = dict[str, Any]


def score_rows(predictions: Predictions, task: TaskSpec, bins: int) -> list[Row]:
    """Rows with test_set, variant, n, accuracy, accuracy_se, f1, score, agreement, retained, ece, loss.

    Measures are fractions 0..1 and `loss` is the mean cross-entropy in nats.  `predictions` must
    hold the fine-tuned model too, which agreement and retained refer to.
    """
    rows = []
    for test_set, variants in classification_scores(predictions, task).items():
        labels = predictions.labels[test_set]
        for variant, scores in variants.items():
            logits = predictions.logits[test_set][variant]
            extra = {"ece": reliability(logits, labels, bins).ece, "loss": cross_entropy(logits, labels)}
            rows.append({"test_set": test_set, "variant": variant, **scores, **extra})
    return rows


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean of -log softmax(logits)[label], in nats; logits (n, labels), labels (n,)."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(1, keepdims=True)
    chosen = shifted[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - chosen))


def first_rows(predictions: Predictions, n: int) -> Predictions:
    """The first n rows of every test set; all of them if n is 0."""
    if n == 0:
        return predictions
    logits = {
        name: {variant: values[:n] for variant, values in variants.items()}
        for name, variants in predictions.logits.items()
    }
    return Predictions(predictions.label_names, {name: ids[:n] for name, ids in predictions.labels.items()}, logits)
