"""Calibration: does a confidence of 0.8 mean being right in 80 % of cases? (paper, appendix A.3)"""

from dataclasses import dataclass

import numpy as np

from stages.lib.metrics.classification import softmax


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


def reliability(logits: np.ndarray, labels: np.ndarray, bins: int) -> Reliability:
    """Group rows by the probability of their predicted label into `bins` bins of equal width.

    Bins are open below and closed above, as in the implementation of Guo et al. (2017); the paper's
    text has them the other way round, which differs only for confidences exactly on an edge.
    """
    probabilities = softmax(logits)
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    edges = np.linspace(0, 1, bins + 1)
    number = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    divisor = np.maximum(count, 1)
    return Reliability(
        count,
        np.bincount(number, weights=confidence, minlength=bins) / divisor,
        np.bincount(number, weights=right, minlength=bins) / divisor,
    )


def confidence_histogram(logits: np.ndarray, bins: int) -> np.ndarray:
    """Number of rows by top probability, in `bins` bars of equal width over 0..1, shape (bins,) (figure 6)."""
    return np.histogram(softmax(logits).max(1), bins=bins, range=(0.0, 1.0))[0]
