"""Scores of every variant on every stored test set."""

from typing import Any

from stages.lib.data.tasks import TaskSpec
from stages.lib.measure.calibration import confidence_histogram, reliability
from stages.lib.measure.classification import accuracy, agreement, f1, standard_error
from stages.lib.measure.predictions import Predictions
from stages.lib.measure.variants import FINETUNED

Scores = dict[str, dict[str, dict[str, Any]]]


def classification_scores(predictions: Predictions, task: TaskSpec) -> Scores:
    """Test set -> variant -> n, accuracy (with standard error), f1, score, agreement, retained.

    `score` is the task's own metric, accuracy or F1; `retained` is score / score of the fine-tuned
    model, and `agreement` the share of predictions equal to that model's.
    """
    positive = None if task.positive is None else predictions.label_names.index(task.positive)
    return {name: _set_scores(predictions, name, task.metric, positive) for name in predictions.logits}


def _set_scores(
    predictions: Predictions, test_set: str, metric: str, positive: int | None
) -> dict[str, dict[str, Any]]:
    labels, variants = predictions.labels[test_set], predictions.logits[test_set]
    scores: dict[str, dict[str, Any]] = {}
    for variant, logits in variants.items():
        share = accuracy(logits, labels)
        scores[variant] = {
            "n": len(labels),
            "accuracy": share,
            "accuracy_se": standard_error(share, len(labels)),
            "f1": f1(logits, labels, positive),
            "agreement": agreement(logits, variants[FINETUNED]),
        }
        scores[variant]["score"] = scores[variant][metric]
    whole = scores[FINETUNED]["score"]
    for values in scores.values():
        # no number at all is better than an infinite one
        values["retained"] = values["score"] / whole if whole else None
    return scores


def calibration_scores(predictions: Predictions, bins: int, histogram_bins: int) -> Scores:
    """Test set -> variant -> n, ece, and the lists behind the reliability diagram and the histogram."""
    scores: Scores = {}
    for name, variants in predictions.logits.items():
        scores[name] = {}
        for variant, logits in variants.items():
            table = reliability(logits, predictions.labels[name], bins)
            scores[name][variant] = {
                "n": int(table.count.sum()),
                "ece": table.ece,
                "bin_count": table.count.tolist(),
                "bin_confidence": table.confidence.tolist(),
                "bin_accuracy": table.accuracy.tolist(),
                "histogram": confidence_histogram(logits, histogram_bins).tolist(),
            }
    return scores
