"""Accuracy, F1 and Matthews correlation, as functions of stored logits."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Scored(Protocol):
    """What a score has to know of a task: its labels, its metric (accuracy | f1 | mcc), and the label that f1 is of."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def metric(self) -> str: ...

    @property
    def positive(self) -> str | None: ...


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows whose highest logit is the label's."""
    return float(np.mean(logits.argmax(1) == labels))


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
    """The task's own metric, labels numbered as in `names`: accuracy, F1 or Matthews correlation."""
    if task.metric == "accuracy":
        return accuracy(logits, labels)
    if task.metric == "mcc":
        return mcc(logits, labels)
    return f1(logits, labels, None if task.positive is None else [*names].index(task.positive))
