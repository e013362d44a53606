"""One backbone that several tasks read, moved along their task vectors: every point of task arithmetic.

The head of a task is that of its fine-tuned model, in place from the start and the same for every
method, so a task vector lies in the region alone, and the pretrained backbone under that head is the
zero-shot model.  With prompts there are no heads: label words are read off the pretrained vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from skill_grafting.grafting.apply import transplant
from skill_grafting.grafting.mask_files import read_mask_for
from skill_grafting.grafting.region import Tensors
from skill_grafting.merging.arithmetic import combined, task_vector
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.io import read_rows
from stages.talos.linearised import LinearisedModel
from stages.talos.settings import Settings
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from stages.text.rows.sampling import spread
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.training import open_shared
from stages.workflow.stage import paths

FULL, LINEAR = "full", "linear"
# (task, split) -> encoded rows
Sets = dict[tuple[str, str], list[Example]]
Key = tuple[str, str]
Merger = Callable[[Tensors, Mapping[str, Tensors]], dict[str, Tensor]]


def encode_rows(views: Mapping[str, LabelModel], seed: int, limits: Mapping[str, int]) -> Sets:
    """Rows of each split of every task; `limits`: split -> how many, 0 for all.

    Of dev they are spread over the labels, since it is not in random order, of test the first ones.
    """
    taken = {"dev": spread, "test": lambda rows, most: rows[: most or None]}
    return {
        (task, split): view.encode(taken[split](read_rows(paths.sample(task, seed, split)), most))
        for task, view in views.items()
        for split, most in limits.items()
    }


def moved_region(method: str, task: str, seed: int, anatomy: ModelSpec, pretrained: Tensors) -> dict[str, Tensor]:
    """The region as a method left it for a task; raises MaskError if it was made for another model."""
    if method == FULL:
        return read_tensors(paths.finetuned(task, seed), pretrained)
    stored = read_mask_for(paths.mask("edit", task, seed, method), pretrained, anatomy.name)
    return transplant(pretrained, stored.values, stored.mask)


class ArithmeticModel:
    """Label logits of any task's rows at any coefficients of the tasks' vectors.

    `models`: task -> the region as a method left it.  `mergers`, which may be set: further vectors by
    name, each made of all models when it is first asked for, such as their sum.
    """

    def __init__(
        self, views: Mapping[str, LabelModel], pretrained: Tensors, models: Mapping[str, Tensors], sets: Sets
    ) -> None:
        self.views, self.pretrained, self.models, self.sets = views, pretrained, models, sets
        self.mergers: Mapping[str, Merger] = {}
        self._vectors: dict[str, dict[str, Tensor]] = {}

    def logits(self, coefficients: Mapping[str, float], keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        """(task, split) -> logits (n, labels) with these multiples of the named vectors added to the pretrained model."""
        self._move(coefficients)
        return {key: self.current(key) for key in keys}

    def current(self, key: Key) -> np.ndarray:
        """Logits (n, labels) of a set with the weights as they are."""
        return predict(self.views[key[0]], self.sets[key]).numpy()

    def labels(self, key: Key) -> np.ndarray:
        """Label numbers (n,) of a set."""
        return np.array([example.label for example in self.sets[key]])

    def put(self, region: Tensors) -> None:
        """Overwrite the region, which all views share."""
        next(iter(self.views.values())).put(dict(region))

    def _move(self, coefficients: Mapping[str, float]) -> None:
        # no more vectors than are in use: one takes eight bytes a parameter
        used = [name for name, alpha in coefficients.items() if alpha]
        self._vectors = {name: self._vectors[name] if name in self._vectors else self._vector(name) for name in used}
        self.put(combined(self.pretrained, self._vectors, coefficients))

    def _vector(self, name: str) -> dict[str, Tensor]:
        if name in self.mergers:
            return self.mergers[name](self.pretrained, self.models)
        return task_vector(self.pretrained, self.models[name])


class LinearArithmeticModel(ArithmeticModel):
    """The same in the tangent space, where logits are linear in the coefficients: each vector is differentiated once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._readers = {task: LinearisedModel(view, self.pretrained) for task, view in self.views.items()}
        self._changes: dict[tuple[str, Key], np.ndarray] = {}

    def logits(self, coefficients: Mapping[str, float], keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        """The same, as a sum."""

        def at_point(key: Key) -> np.ndarray:
            moved = (alpha * self._change(name, key) for name, alpha in coefficients.items() if alpha)
            return sum(moved, self._change("", key)).astype(np.float32)

        return {key: at_point(key) for key in keys}

    def _change(self, name: str, key: Key) -> np.ndarray:
        """The change of a set's logits by a vector; without a name the pretrained logits themselves."""
        if (name, key) not in self._changes:
            self._move({name: 1.0} if name else {})
            logits = predict(self._readers[key[0]], self.sets[key]).numpy().astype(np.float64)
            self._changes[name, key] = logits - self._change("", key) if name else logits
        return self._changes[name, key]


def open_model(
    method: str, tasks: list[str], seed: int, params: Settings, machine: Runtime, limits: Mapping[str, int]
) -> ArithmeticModel:
    """The vectors of a method for these tasks; `params` has the sections model and graft.region, `limits` see encode_rows."""
    anatomy = read_anatomy(paths.PRETRAINED)
    pretrained = read_tensors(paths.PRETRAINED, anatomy.region(params.graft.region, "graft.region").shapes)
    views = open_shared(tasks, seed, params.model, machine).views
    models = {task: moved_region(method, task, seed, anatomy, pretrained) for task in tasks}
    kind = LinearArithmeticModel if method == LINEAR else ArithmeticModel
    return kind(views, pretrained, models, encode_rows(views, seed, limits))
