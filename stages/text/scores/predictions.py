"""Stored predictions: label logits of several models on several test sets, in one file.

Everything reported is a function of these files, so no metric ever needs a model again.
NumPy alone reads them, which keeps the stages that derive metrics quick to start.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from skill_grafting.support.errors import DataError
from skill_grafting.support.writing import replacing

DEV = ":dev"


@dataclass(frozen=True)
class Predictions:
    """labels: test set -> (n,) label numbers; logits: test set -> variant -> (n, labels) float32."""

    label_names: list[str]
    labels: dict[str, np.ndarray]
    logits: dict[str, dict[str, np.ndarray]]

    def __or__(self, other: "Predictions") -> "Predictions":
        """Both sets of variants together; raises DataError unless they are about the same test rows."""
        same = self.label_names == other.label_names and self.labels.keys() == other.labels.keys()
        if not same or any(not np.array_equal(self.labels[name], other.labels[name]) for name in self.labels):
            raise DataError("predictions are about different test rows")
        logits = {name: {**self.logits[name], **other.logits[name]} for name in self.logits}
        return Predictions(self.label_names, self.labels, logits)

    def part(self, test_sets: Iterable[str], variants: Collection[str] = ()) -> "Predictions":
        """These test sets alone, and these variants alone if any are named."""
        labels = {name: self.labels[name] for name in test_sets}
        logits = {name: {key: self.logits[name][key] for key in variants or self.logits[name]} for name in labels}
        return Predictions(self.label_names, labels, logits)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write predictions; raises StorageError if the disk is full."""
    tensors: dict[str, np.ndarray] = {}
    for test_set, labels in predictions.labels.items():
        tensors[f"labels/{test_set}"] = np.ascontiguousarray(labels, dtype=np.int32)
    for test_set, variants in predictions.logits.items():
        for variant, logits in variants.items():
            tensors[f"logits/{test_set}/{variant}"] = np.ascontiguousarray(logits, dtype=np.float32)
    header = json.dumps({"label_names": predictions.label_names})
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"predictions": header})


def dev_set(task: str) -> str:
    """Name of a task's dev rows in the file, where they stand among its test sets."""
    return f"{task}{DEV}"


def read_predictions(path: Path, dev: bool = False) -> Predictions:
    """Read predictions on test sets or (`dev`) on dev rows, under the task's name; raises DataError if missing or damaged."""
    if not path.exists():
        raise DataError(f"{path}: no such predictions")
    labels: dict[str, np.ndarray] = {}
    logits: dict[str, dict[str, np.ndarray]] = {}
    try:
        with safe_open(path, framework="np") as file:
            names = json.loads(file.metadata()["predictions"])["label_names"]
            for key in file.keys():  # noqa: SIM118 - not a dict
                kind, test_set, *variant = key.split("/")
                if test_set.endswith(DEV) != dev:
                    continue
                name, values = test_set.removesuffix(DEV), file.get_tensor(key)
                if kind == "logits":
                    logits.setdefault(name, {})[variant[0]] = values
                else:
                    labels[name] = values
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged: {error}") from error
    return Predictions(names, labels, logits)


def first_rows(predictions: Predictions, n: int) -> Predictions:
    """The first n rows of every test set; all of them if n is 0."""
    labels = {name: numbers[: n or None] for name, numbers in predictions.labels.items()}
    logits = {
        name: {key: values[: n or None] for key, values in variants.items()}
        for name, variants in predictions.logits.items()
    }
    return Predictions(predictions.label_names, labels, logits)
