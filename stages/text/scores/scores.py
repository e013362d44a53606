"""Scores of every variant on every stored test set, nested or as tidy rows for a data frame."""

from typing import Any

import numpy as np

from skill_grafting.calibration import confidence_histogram, reliability
from stages.text.scores.classification import Scored, accuracy, f1, task_score
from stages.text.scores.predictions import Predictions
from stages.text.scores.variants import FINETUNED

Scores = dict[str, dict[str, dict[str, Any]]]
Row = dict[str, Any]
# samples of a bootstrap over test rows
DRAWS = 400


def classification_scores(predictions: Predictions, task: Scored) -> Scores:
    """Test set -> variant -> n, accuracy (with standard error), f1, agreement, score, retained, majority, constant.

    `score` is the task's own metric, accuracy, F1 or Matthews correlation; `retained` is score / score
    of the fine-tuned model, and `agreement` the share of predictions equal to that model's.  `majority` and
    `constant` are of no model: see constant_scores.
    """
    scores: Scores = {}
    for name, variants in predictions.logits.items():
        scores[name] = own_scores(predictions, name, task, variants[FINETUNED])
        whole = scores[name][FINETUNED]["score"]
        for values in scores[name].values():
            # no share is defined of 0 or less (Matthews correlation)
            values["retained"] = values["score"] / whole if whole > 0 else None
    return scores


def own_scores(
    predictions: Predictions, test_set: str, task: Scored, finetuned: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """Variant -> n, accuracy (with standard error), f1, score, majority and constant; against no other model if none is given."""
    labels, scores = predictions.labels[test_set], {}
    constant = constant_scores(labels, predictions.label_names, task)
    for variant, logits in predictions.logits[test_set].items():
        basic = _basic(logits, labels, predictions.label_names, task)
        if finetuned is not None:
            basic["agreement"] = agreement(logits, finetuned)
        score = task_score(logits, labels, predictions.label_names, task)
        scores[variant] = {**basic, "score": score, **constant}
    return scores


def constant_scores(labels: np.ndarray, names: list[str], task: Scored) -> dict[str, float]:
    """The baseline without a model: accuracy and score of always predicting the same label, the best one for each.

    `majority` is the share of the most frequent label, `constant` the highest score by the task's own metric, such as
    the F1 of always predicting the positive label.
    """
    always = np.eye(len(names))
    scores = [task_score(np.tile(one, (len(labels), 1)), labels, names, task) for one in always]
    return {"majority": majority_share(labels), "constant": max(scores)}


def _basic(logits: np.ndarray, labels: np.ndarray, names: list[str], task: Scored) -> dict[str, Any]:
    """n, accuracy, accuracy_se and f1."""
    share, n = accuracy(logits, labels), len(labels)
    positive = None if task.positive is None else names.index(task.positive)
    return {"n": n, "accuracy": share, "accuracy_se": standard_error(share, n), "f1": f1(logits, labels, positive)}


def calibration_scores(predictions: Predictions, bins: int, histogram_bins: int) -> Scores:
    """Test set -> variant -> n (rows), ece, and the lists behind the reliability diagram and the histogram."""

    def scores_of(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        table = reliability(logits, labels, bins)
        lists = {f"bin_{name}": getattr(table, name).tolist() for name in ("count", "confidence", "accuracy")}
        histogram = confidence_histogram(logits, histogram_bins).tolist()
        return {"n": len(labels), "ece": table.ece, **lists, "histogram": histogram}

    return {
        name: {variant: scores_of(logits, predictions.labels[name]) for variant, logits in variants.items()}
        for name, variants in predictions.logits.items()
    }


def score_rows(predictions: Predictions, task: Scored, bins: int) -> list[Row]:
    """Rows with test_set, variant, ece, loss, and the scores of classification_scores.

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


def drawn_scores(predictions: Predictions, task: Scored, bins: int) -> list[Row]:
    """`score_rows` of DRAWS samples of the test rows with replacement, numbered by `draw`: the same rows for all variants, every time."""
    draw, found = np.random.default_rng(0), []
    for number in range(DRAWS):
        labels, logits = {}, {}
        for name, numbers in predictions.labels.items():
            rows = draw.integers(len(numbers), size=len(numbers))
            labels[name] = numbers[rows]
            logits[name] = {variant: values[rows] for variant, values in predictions.logits[name].items()}
        sample = Predictions(predictions.label_names, labels, logits)
        found += [{"draw": number, **row} for row in score_rows(sample, task, bins)]
    return found


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean of -log softmax(logits)[label], in nats; logits (n, labels), labels (n,)."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))


def standard_error(share: float, n: int) -> float:
    """Standard error of a share measured on n rows."""
    return float(np.sqrt(share * (1 - share) / n))


def majority_share(labels: np.ndarray) -> float:
    """Accuracy of always predicting the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))


def agreement(logits: np.ndarray, others: np.ndarray) -> float:
    """Share of rows on which two models predict the same label, right or wrong (paper, section 3.1)."""
    return float(np.mean(logits.argmax(1) == others.argmax(1)))
