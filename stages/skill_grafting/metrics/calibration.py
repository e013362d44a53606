"""Reliability: how often predictions are right, by how sure they are (equation 6)."""

from dataclasses import dataclass

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float64, shape of the logits."""
    odds = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


@dataclass(frozen=True)
class Reliability:
    """Per confidence bin, each of shape (bins,): number of rows, mean confidence, accuracy (0 where empty)."""

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: sum over bins of share of rows * |confidence - accuracy| (equation 6)."""
        return float(np.sum(self.count / self.count.sum() * np.abs(self.confidence - self.accuracy)))


def binned(confidence: np.ndarray, right: np.ndarray, bins: int) -> Reliability:
    """Group predictions by their confidence (n,) into `bins` bins of equal width; `right` (n,) says which are true.

    Bins are open below and closed above, as in the implementation of Guo et al. (2017); the paper's
    text has them the other way round, which differs only for confidences exactly on an edge.
    """
    edges = np.linspace(0, 1, bins + 1)
    number = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    divisor = np.maximum(count, 1)
    means = (np.bincount(number, weights=values, minlength=bins) / divisor for values in (confidence, right))
    return Reliability(count, *means)
