"""Predictions of several variants of one model on the same test sets."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.progress import progress
from stages.text.models.label_model import LabelModel, reset_to_pretrained
from stages.text.models.predicting import labels_of, predict
from stages.text.scores.classification import accuracy
from stages.text.scores.predictions import Predictions

if TYPE_CHECKING:
    from tqdm import tqdm


class Evaluation:
    """Collects label logits: encode once, predict with the model's current weights."""

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

    def predict(self, variant: str, sets: Collection[str] = ()) -> None:
        """Predict every test set, or only these if any are named, with the model as it is now."""
        for name in sets or self._encoded:
            self._logits[name][variant] = predict(self.model, self._encoded[name], self._bar.update).numpy()

    def predictions(self) -> Predictions:
        """Everything predicted so far."""
        labels = {name: labels_of(examples) for name, examples in self._encoded.items()}
        return Predictions(self.model.task.labels, labels, self._logits)

    def describe(self) -> str:
        """One line for the log: accuracy of each variant on the first test set."""
        name = next(iter(self._logits))
        labels = self.predictions().labels[name]
        shares = {variant: accuracy(logits, labels) for variant, logits in self._logits[name].items()}
        text = ", ".join(f"{variant} {share:.3f}" for variant, share in shares.items())
        return f"{text} (accuracy, n={len(labels)})"


@dataclass(frozen=True)
class MovedParameters:
    """Everything that fine-tuning moved and that has pretrained values: both sets of them, and the live model."""

    model: LabelModel
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]

    @classmethod
    def of(cls, model: LabelModel, pretrained_folder: Path) -> "MovedParameters":
        """Take a fine-tuned model, which is reset to its pretrained values, but for a new head."""
        anatomy = read_anatomy(pretrained_folder)
        names, parameters = model.pretrained_names(anatomy), model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in names}
        pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, names)
        moved = [name for name in names if not torch.equal(pretrained[name], finetuned[name])]
        return cls(model, *({name: values[name] for name in moved} for values in (pretrained, finetuned)))
