"""Predictions of several variants of one model on the same test sets."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.progress import progress
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel, reset_to_pretrained
from stages.text.models.predicting import logits_of, predict, predict_tokens
from stages.text.scores.classification import TARGETS, accuracy, count_rows, of_tokens
from stages.text.scores.predictions import Predictions
from stages.text.scores.temperature import LOG_BOUNDS

if TYPE_CHECKING:
    from tqdm import tqdm


# temperatures tried per pass, and passes; each pass lies between the neighbours of the best one before
TRIED, PASSES = 41, 2


class Evaluation:
    """Collects label logits, or records of tokens: encode once, predict with the model's current weights."""

    def __init__(self, model: LabelModel, sets: dict[str, list[dict]], variants: int) -> None:
        self.model, self._variants, self._by_tokens = model, variants, model.mode == "generative"
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
            given = self.model, self._encoded[name], self._bar.update
            self._logits[name][variant] = (
                predict_tokens(*given, degrees) if self._by_tokens else predict(*given).numpy()
            )

    def predict_tempered(self, variant: str, dev: str, sets: Collection[str]) -> float:
        """Predict the tokens of these sets at the temperature at which the model as it is now says those of `dev` best; gives it."""
        degrees = token_temperature(self.model, self._encoded[dev], LOG_BOUNDS)
        self.predict(variant, sets, degrees)
        return degrees

    def predictions(self) -> Predictions:
        """Everything predicted so far."""
        labels = {
            name: targets_of(examples) if self._by_tokens else np.array([example.label for example in examples])
            for name, examples in self._encoded.items()
        }
        return Predictions(self.model.task.labels, labels, self._logits)

    def describe(self) -> str:
        """One line for the log: accuracy (of completions, exact match) of each variant on the first test set."""
        name = next(iter(self._logits))
        labels = self.predictions().labels[name]
        shares = {variant: accuracy(logits, labels) for variant, logits in self._logits[name].items()}
        measure = "exact match" if of_tokens(labels) else "accuracy"
        text = ", ".join(f"{variant} {share:.3f}" for variant, share in shares.items())
        return f"{text} ({measure}, n={count_rows(labels)})"


@dataclass(frozen=True)
class Moved:
    """Everything that fine-tuning moved and that has pretrained values: both sets of them, and the live model."""

    model: LabelModel
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]

    @classmethod
    def of(cls, model: LabelModel, pretrained_folder: Path) -> "Moved":
        """Take a fine-tuned model, which is reset to its pretrained values, but for a new head."""
        anatomy = read_anatomy(pretrained_folder)
        names, parameters = model.pretrained_names(anatomy), model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in names}
        pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, names)
        moved = [name for name in names if not torch.equal(pretrained[name], finetuned[name])]
        return cls(model, *({name: values[name] for name in moved} for values in (pretrained, finetuned)))


def targets_of(examples: list[Example]) -> np.ndarray:
    """The tokens of the completions, one after the other, with their rows: records TARGETS."""
    pairs = [(row, target) for row, example in enumerate(examples) for target in example.targets]
    return np.array(pairs, TARGETS)


def token_temperature(model: LabelModel, examples: list[Example], log_bounds: tuple[float, float]) -> float:
    """The temperature at which the completions have the lowest mean cross-entropy, to half a percent.

    The loss has a single minimum, as it is convex in 1 / temperature, so it lies between the neighbours of the best one tried.
    """
    low, high = log_bounds
    for _ in range(PASSES):
        powers = torch.linspace(low, high, TRIED)
        tried = powers.exp().tolist()
        batches = [
            torch.stack([cross_entropy(logits / degrees, targets, reduction="sum") for degrees in tried])
            for _, logits, targets in logits_of(model, examples)
        ]
        losses = sum(torch.stack(batches).cpu().double())
        best = int(losses.argmin())
        low, high = (float(powers[place]) for place in (max(best - 1, 0), min(best + 1, TRIED - 1)))
    return float(powers[best].exp())
