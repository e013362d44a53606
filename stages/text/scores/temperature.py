"""Temperature scaling, and score against calibration error of the graft and of simpler methods.

Temperature (Guo et al., 2017): one number that a model's logits are divided by, fitted on dev rows.
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from skill_grafting.calibration import reliability
from stages.text.scores.predictions import Predictions
from stages.text.scores.scores import Row, cross_entropy
from stages.text.scores.variants import (
    FINETUNED,
    GRAFT_TEMPERED,
    GRAFTED,
    PRETRAINED,
    TEMPERED,
    VARIANTS,
    WISE_FT,
    WISE_GRAFT,
)

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
    values = {name: (variants[FINETUNED] / degrees).astype(np.float32) for name, variants in predictions.logits.items()}
    logits = {name: {TEMPERED: scaled} for name, scaled in values.items()}
    return Predictions(predictions.label_names, predictions.labels, logits)


def frontier(tests: Predictions, dev: Predictions, task: str, record: dict[str, Any], bins: int) -> list[Row]:
    """One row for each model on a task's own test rows: method, alpha, temperature, score, ece, n.

    `method` is a variant; `wise_graft` has a row for each weight alpha of the graft, pretrained (0) and grafted (1) among them.
    `record` is what controls and evaluate stored of the cell.  alpha and temperature are None where there is none.
    """
    scores, labels, logits = record["scores"][task], tests.labels[task], tests.logits[task]
    hot = temperature(dev.logits[task][GRAFTED], dev.labels[task])
    logits = {**logits, GRAFT_TEMPERED: logits[GRAFTED] / hot}

    def row(method: str, variant: str, alpha: float | None = None, degrees: float | None = None) -> Row:
        ece = reliability(logits[method if method == GRAFT_TEMPERED else variant], labels, bins).ece
        fitted = {"alpha": alpha, "temperature": degrees}
        return {"method": method, **fitted, "score": scores[variant]["score"], "ece": ece, "n": len(labels)}

    prefix = f"{WISE_GRAFT}_"
    between = {float(name.removeprefix(prefix)): name for name in tests.logits[task] if name.startswith(prefix)}
    between |= {0.0: PRETRAINED, 1.0: GRAFTED}
    return [
        *(row(name, name) for name in VARIANTS),
        row(TEMPERED, TEMPERED, degrees=record["temperature"]),
        row(GRAFT_TEMPERED, GRAFTED, degrees=hot),
        row(WISE_FT, WISE_FT, alpha=record["wise_alpha"]),
        *(row(WISE_GRAFT, between[alpha], alpha=alpha) for alpha in sorted(between)),
    ]
