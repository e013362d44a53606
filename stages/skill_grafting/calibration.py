"""Reliability: how often predictions are right, by how sure they are (equation 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .support.errors import DataError, ParamsError, a_kind, one_line

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


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


def reliability(logits: np.ndarray, labels: np.ndarray, bins: int) -> Reliability:
    """Group rows by the probability of their predicted label into bins."""
    probabilities = softmax(logits)
    return binned(probabilities.max(1), probabilities.argmax(1) == labels, bins)


def calibration_floor(count: ArrayLike, confidence: ArrayLike) -> float:
    """The calibration error, from 0 to 1, that a perfectly calibrated model is expected to measure on as many rows.

    `count` and `confidence` are the number of rows and the mean confidence of each bin, both of shape (bins,).  Even if a bin of n rows is
    right with just its confidence p, the number of right ones is binomial, and its mean absolute deviation from np (de Moivre, 1730) is
    no error of the model.  With the rows' own confidences it would be no larger (Hoeffding, 1956), and in narrow bins hardly smaller.
    """
    from scipy.stats import binom  # takes a second to import

    count, confidence = np.asarray(count, int), np.asarray(confidence, float)
    above = np.floor(count * confidence) + 1
    deviations = 2 * above * (1 - confidence) * binom.pmf(above, count, confidence)
    return float(deviations.sum() / count.sum())


def confidence_histogram(logits: np.ndarray, bins: int) -> np.ndarray:
    """Number of rows by top probability, in `bins` bars of equal width over 0..1, shape (bins,) (figure 6)."""
    top = softmax(logits).max(1)
    return np.histogram(top, bins=bins, range=(0.0, 1.0))[0]


def calibration_error(logits: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """The expected calibration error (equation 6), from 0 to 1, by so many bins of equal width.

        error = sg.calibration_error(model(inputs).logits, labels)

    logits: tensors or rows of numbers, shape (n, classes); labels: shape (n,), whole numbers from 0 to classes - 1.
    Raises DataError for what isn't that, probabilities in place of logits among it, and ParamsError for no bins.
    """
    import torch  # whose tensors are taken, too

    try:
        logits, labels = (torch.as_tensor(values).detach().cpu() for values in (logits, labels))
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = " and ".join(a_kind(values) for values in (logits, labels))
        raise DataError(
            f"logits and labels should be tensors or rows of numbers, not {kinds}: {one_line(error)}"
        ) from None
    if logits.ndim != 2 or not logits.numel() or labels.shape != logits.shape[:1]:
        raise DataError(f"logits should be (n, classes) and labels (n,), not {[*logits.shape]} and {[*labels.shape]}")
    whole = not labels.is_complex() and bool((labels == labels.long()).all())
    if not whole or not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise DataError(
            f"labels: should be whole numbers within 0..{logits.shape[1] - 1}, one for each row; leave out rows without one"
        )
    wide = logits.double()
    if not bool(wide.isfinite().any(1).all()) or bool((wide.isnan() | (wide == torch.inf)).any()):
        raise DataError("logits: should be numbers, finite but for -inf of labels that can't be")
    if bool((wide >= 0).all()) and bool(((wide.sum(1) - 1).abs() < 1e-4).all()):
        raise DataError(
            "logits: these are probabilities, rows from 0 to 1 that sum to 1; give logits, or their logarithms"
        )
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise ParamsError(f"bins: {bins!r} should be 1 or more")
    probabilities = softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)).numpy())
    return binned(probabilities.max(1), probabilities.argmax(1) == labels.numpy(), bins).ece
