"""Accuracy, F1, Matthews correlation, agreement and calibration, as functions of stored logits.

Accuracy, agreement and calibration are of completions, too, whose records (tokens.py) stand in place of logits and labels.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .tokens import exact_match, of_tokens


class Scored(Protocol):
    """What a score has to know of a task: its labels, its metric (accuracy | f1 | mcc), and the label that f1 is of."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def metric(self) -> str: ...

    @property
    def positive(self) -> str | None: ...


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows whose highest logit is the label's; of completions their exact match."""
    if of_tokens(logits):
        return exact_match(logits, labels)
    return float(np.mean(logits.argmax(1) == labels))


def standard_error(share: float, n: int) -> float:
    """Standard error of a share measured on n rows."""
    return float(np.sqrt(share * (1 - share) / n))


def f1(logits: np.ndarray, labels: np.ndarray, positive: int | None) -> float:
    """F1 of label number `positive`, 0 if it is neither predicted nor present; None: the mean over all labels that are (macro).

    scikit-learn's f1_score has the same rule.
    """
    predicted = logits.argmax(1)
    classes = np.unique([predicted, labels]) if positive is None else [positive]
    hits = [np.sum((predicted == label) & (labels == label)) for label in classes]
    totals = [np.sum(predicted == label) + np.sum(labels == label) for label in classes]
    return float(np.mean([2 * hit / total for hit, total in zip(hits, totals, strict=True) if total] or [0.0]))


def mcc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation, -1 to 1, of any number of labels (Gorodkin, 2004); 0 if all predictions or labels are the same."""
    classes = np.arange(logits.shape[1])
    predicted, actual = ((numbers[:, None] == classes).astype(float) for numbers in (logits.argmax(1), labels))
    predicted, actual = predicted - predicted.mean(0), actual - actual.mean(0)
    scale = np.sqrt((predicted**2).sum() * (actual**2).sum())
    return float((predicted * actual).sum() / scale) if scale else 0.0


def task_score(logits: np.ndarray, labels: np.ndarray, names: Sequence[str], task: Scored) -> float:
    """The task's own metric, labels numbered as in `names`: accuracy, F1 or Matthews correlation; the exact match of completions."""
    if of_tokens(logits) or task.metric == "accuracy":
        return accuracy(logits, labels)
    if task.metric == "mcc":
        return mcc(logits, labels)
    return f1(logits, labels, None if task.positive is None else [*names].index(task.positive))


def majority_share(labels: np.ndarray) -> float:
    """Accuracy of always predicting the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))


def agreement(logits: np.ndarray, others: np.ndarray) -> float:
    """Share of rows on which two models predict the same label, right or wrong (paper, section 3.1); of tokens alike."""
    if of_tokens(logits):
        return float(np.mean(logits["predicted"] == others["predicted"]))
    return float(np.mean(logits.argmax(1) == others.argmax(1)))
