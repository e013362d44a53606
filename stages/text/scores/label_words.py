"""The prior of label words: one scale of all logits and one bias for each label, fitted on training rows (vector scaling, Guo et al., 2017).

A model that reads labels off words prefers some words whatever the text says.  What a handful of numbers mend of that is no skill that
anybody has to localize, so it is a control of every gain over the pretrained model.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import minimize

from skill_grafting.calibration import softmax
from stages.text.scores.scores import cross_entropy

# of the scale: at 0 the logits say nothing, and far above 1 the rows are all right
SCALES = (0.0, 100.0)


@dataclass(frozen=True)
class LabelWords:
    """scale: what logits are multiplied by; biases: what is then added, one for each label, 0 for the first."""

    scale: float
    biases: list[float]

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """The logits (n, labels) with scale and biases, float32."""
        return (self.scale * logits.astype(np.float64) + self.biases).astype(np.float32)

    def record(self) -> dict[str, float | list[float]]:
        """Both as they are stored."""
        return asdict(self)


def fit_label_words(logits: np.ndarray, labels: np.ndarray) -> LabelWords:
    """The scale and biases with the lowest mean cross-entropy on rows (n, labels), the only minimum that there is, as the problem is convex."""
    rows, classes = logits.shape
    wide, hot = logits.astype(np.float64), np.eye(classes)[labels]

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = values[0] * wide + np.append(0.0, values[1:])
        over = (softmax(scaled) - hot) / rows
        return cross_entropy(scaled, labels), np.append((over * wide).sum(), over.sum(0)[1:])

    bounds = [SCALES, *[(None, None)] * (classes - 1)]
    found = minimize(
        loss,
        np.append(1.0, np.zeros(classes - 1)),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"ftol": 1e-12, "gtol": 1e-8},
    )
    return LabelWords(float(found.x[0]), [0.0, *map(float, found.x[1:])])
