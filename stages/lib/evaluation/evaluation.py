"""Predictions of several variants of one model on the same test sets."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from stages.lib import paths
from stages.lib.data.task_cards import read_task, read_test_sets
from stages.lib.graft.apply import graft, transplant
from stages.lib.graft.mask_file import read_mask, require_model
from stages.lib.graft.order_file import read_order
from stages.lib.localizers.movement import movement_mask
from stages.lib.metrics.predictions import Predictions, write_predictions
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel, reset_to_pretrained
from stages.lib.models.predicting import predict
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.settings import ModelParams


class Evaluation:
    """Collects label logits: encode once, predict with whatever weights the model has at the moment."""

    def __init__(self, model: LabelModel, sets: dict[str, list[dict]], variants: int) -> None:
        self.model, self._variants = model, variants
        self._encoded = {name: model.encode(rows) for name, rows in sets.items()}
        self._logits: dict[str, dict[str, np.ndarray]] = {name: {} for name in sets}
        self._bar: Any = None

    @property
    def sets(self) -> list[str]:
        """Names of the test sets."""
        return [*self._encoded]

    def progress(self, title: str) -> Any:
        """A progress bar over all predictions, to be used in a `with`."""
        rows = sum(len(examples) for examples in self._encoded.values())
        self._bar = progress(title, rows * self._variants, "row")
        return self._bar

    def predict(self, variant: str) -> None:
        """Predict every test set with the model as it is now."""
        for name, examples in self._encoded.items():
            self._logits[name][variant] = predict(self.model, examples, self._bar.update).numpy()

    def predictions(self) -> Predictions:
        """Everything predicted so far."""
        labels = {name: np.array([example.label for example in examples]) for name, examples in self._encoded.items()}
        return Predictions(self.model.task.labels, labels, self._logits)

    def describe(self) -> str:
        """One line for the log: accuracy of each variant on the first test set."""
        name = next(iter(self._logits))
        labels = self.predictions().labels[name]
        shares = {variant: np.mean(logits.argmax(1) == labels) for variant, logits in self._logits[name].items()}
        return (
            ", ".join(f"{variant} {share:.3f}" for variant, share in shares.items()) + f" (accuracy, n={len(labels)})"
        )


def predict_reference(task: str, seed: int, settings: ModelParams, machine: Runtime) -> str:
    """Store what the fine-tuned and the pretrained model of a cell predict; gives one line about it.

    `settings` is the `model` section.
    """
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, machine)
    evaluation = Evaluation(model, read_test_sets(task, seed), variants=2)
    with evaluation.progress(f"reference {task}-{seed}"):
        evaluation.predict(FINETUNED)
        reset_to_pretrained(model, read_anatomy(paths.PRETRAINED), paths.PRETRAINED)
        evaluation.predict(PRETRAINED)
    write_predictions(paths.predictions("reference", task, seed), evaluation.predictions())
    return f"reference {task}-{seed}: {evaluation.describe()}"


def grafts(
    model: LabelModel, task: str, seed: int, region_groups: list[str]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The region's tensors of each grafted variant, from the stored mask and movement order of a cell.

    `model` comes fine-tuned and is reset to its pretrained values outside the region, but for a new
    head.  Raises MaskError if the mask belongs to another model.
    """
    anatomy = read_anatomy(paths.PRETRAINED)
    region = anatomy.region(region_groups)
    finetuned = {name: model.parameters()[name].detach().cpu().clone() for name in region.shapes}
    pretrained = {
        name: values.cpu()
        for name, values in reset_to_pretrained(model, anatomy, paths.PRETRAINED, region.shapes).items()
    }
    stored = read_mask(paths.learned(task, seed))
    order, origin = read_order(paths.movement(task, seed))
    fingerprint = region.fingerprint(pretrained)
    for path, about in ((paths.learned(task, seed), stored.about), (paths.movement(task, seed), origin)):
        require_model(path, about, region, fingerprint, anatomy.name)
    yield MOVEMENT_GRAFTED, graft(pretrained, finetuned, movement_mask(region, order, stored.mask.selected))
    yield GRAFTED, transplant(pretrained, stored.values, stored.mask)
