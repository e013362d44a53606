"""Predictions of several variants of one model on the same test sets."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from .. import paths
from ..data.tasks import read_task, read_test_sets
from ..io import read_rows
from ..metrics.classification import accuracy
from ..metrics.predictions import Predictions, dev_set, write_predictions
from ..metrics.temperature import LOG_BOUNDS
from ..metrics.tokens import count_rows, of_tokens
from ..metrics.variants import FINETUNED, PRETRAINED
from ..models.anatomy import read_anatomy
from ..models.label_model import LabelModel, reset_to_pretrained
from ..models.predicting import labels_of, predict_each, token_temperature
from ..progress import progress
from ..runtime import Runtime
from ..settings import ModelParams

if TYPE_CHECKING:
    from tqdm import tqdm


class Evaluation:
    """Collects label logits, or what is said of tokens: encode once, predict with whatever weights the model has at the moment."""

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
        """Predict every test set, or these alone if any are named, with the model as it is now; tokens at a temperature."""
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
        said = ", ".join(f"{variant} {share:.3f}" for variant, share in shares.items())
        return f"{said} ({measure}, n={count_rows(labels)})"


def cell_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """The rows that the main pipeline predicts of a cell: its test sets, its own first, and behind them its dev rows."""
    return {**read_test_sets(task, seed), dev_set(task): read_rows(paths.sample(task, seed, "dev"))}


def predict_reference(task: str, seed: int, settings: ModelParams, machine: Runtime) -> str:
    """Store what the fine-tuned and the pretrained model of a cell predict; gives one line about it."""
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, machine)
    evaluation = Evaluation(model, cell_sets(task, seed), variants=2)
    with evaluation.progress(f"reference {task}-{seed}"):
        evaluation.predict(FINETUNED)
        reset_to_pretrained(model, read_anatomy(paths.PRETRAINED), paths.PRETRAINED)
        evaluation.predict(PRETRAINED)
    write_predictions(paths.predictions("reference", task, seed), evaluation.predictions())
    return f"reference {task}-{seed}: {evaluation.describe()}"
