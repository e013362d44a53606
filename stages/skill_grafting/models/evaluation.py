"""Predictions of several variants of one model on the same test sets."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ..metrics.classification import accuracy
from ..metrics.predictions import Predictions
from ..metrics.temperature import LOG_BOUNDS
from ..metrics.tokens import count_rows, of_tokens
from ..progress import progress
from .label_model import LabelModel
from .predicting import labels_of, predict_each, token_temperature

if TYPE_CHECKING:
    from tqdm import tqdm


class Evaluation:
    """Collects label logits, or records of tokens: encode once, predict with the model's current weights."""

    def __init__(self, model: LabelModel, sets: dict[str, list[dict]], variants: int) -> None:
        self.model, self._variants = model, variants
        self._encoded = {name: model.encode(rows) for name, rows in sets.items()}
        self._logits: dict[str, dict[str, np.ndarray]] = {name: {} for name in sets}
        self._bar: tqdm | None = None

    @property
    def sets(self) -> list[str]:
        """Names of the test sets."""
        return [*self._encoded]

    def progress(self, title: str) -> "tqdm":
        """A progress bar over all predictions, to be used in a `with`."""
        rows = sum(len(examples) for examples in self._encoded.values())
        self._bar = progress(title, rows * self._variants, "row")
        return self._bar

    def predict(self, variant: str, sets: Collection[str] = (), degrees: float = 1.0) -> None:
        """Predict every test set, or only these if any are named, with the model as it is now; tokens at a temperature."""
        for name in sets or self._encoded:
            self._logits[name][variant] = predict_each(self.model, self._encoded[name], self._bar.update, degrees)

    def predict_tempered(self, variant: str, dev: str, sets: Collection[str]) -> float:
        """Predict the tokens of these sets at the temperature at which the model as it is now says those of `dev` best; gives it."""
        degrees = token_temperature(self.model, self._encoded[dev], LOG_BOUNDS)
        self.predict(variant, sets, degrees)
        return degrees

    def predictions(self) -> Predictions:
        """Everything predicted so far."""
        labels = {name: labels_of(self.model, examples) for name, examples in self._encoded.items()}
        return Predictions(self.model.task.labels, labels, self._logits)

    def describe(self) -> str:
        """One line for the log: accuracy (of completions, exact match) of each variant on the first test set."""
        name = next(iter(self._logits))
        labels = self.predictions().labels[name]
        shares = {variant: accuracy(logits, labels) for variant, logits in self._logits[name].items()}
        measure = "exact match" if of_tokens(labels) else "accuracy"
        text = ", ".join(f"{variant} {share:.3f}" for variant, share in shares.items())
        return f"{text} ({measure}, n={count_rows(labels)})"
