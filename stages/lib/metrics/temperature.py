"""Temperature scaling (Guo et al., 2017): one number that a model's logits are divided by, fitted on dev rows."""

import numpy as np
from scipy.optimize import minimize_scalar

from .predictions import Predictions
from .scores import cross_entropy
from .variants import FINETUNED, TEMPERED

# natural logarithms of the lowest and the highest temperature
LOG_BOUNDS = (-5.0, 5.0)


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature, exp(-5) to exp(5), at which logits (n, labels) have the lowest mean cross-entropy.

    It changes no prediction, and is at a bound where all rows are right or the logits say nothing.
    """
    how = {"bounds": LOG_BOUNDS, "method": "bounded"}
    found = minimize_scalar(lambda power: cross_entropy(logits / np.exp(power), labels), **how)
    return float(np.exp(found.x))


def tempered(predictions: Predictions, degrees: float) -> Predictions:
    """The fine-tuned model's predictions at a temperature, alone, as the variant TEMPERED."""
    told = {name: (variants[FINETUNED] / degrees).astype(np.float32) for name, variants in predictions.logits.items()}
    logits = {name: {TEMPERED: values} for name, values in told.items()}
    return Predictions(predictions.label_names, predictions.labels, logits)
