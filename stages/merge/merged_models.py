"""Models of several tasks made into one (stage combination); lib/merging has the arithmetic."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.graft.apply import transplant
from stages.lib.graft.mask_file import StoredMask, read_mask, require_model
from stages.lib.io import read_rows, write_json
from stages.lib.merging.arithmetic import choose_alpha, mean_normalised, shifted
from stages.lib.merging.names import (
    ARITHMETIC,
    AVERAGE,
    DARE,
    GRAFTED_ARITHMETIC,
    KINDS,
    MERGED,
    STITCHES,
    SUM,
    TIES,
    TUNED,
)
from stages.lib.merging.stitch import stitch
from stages.lib.merging.vectors import dared, elected, summed
from stages.lib.metrics.classification import accuracy
from stages.lib.metrics.predictions import Predictions, first_rows, read_predictions, write_predictions
from stages.lib.metrics.scores import Row, score_rows
from stages.lib.metrics.variants import GRAFTED
from stages.lib.models.anatomy import HEAD, Anatomy, read_anatomy
from stages.lib.models.loading import bytes_of, read_tensors
from stages.lib.models.predicting import predict
from stages.lib.models.shared import SharedModel
from stages.lib.progress import progress
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.settings import Params
from stages.lib.text.encoding import Example
from stages.merge.collisions import count_collisions
from stages.merge.settings import AlphaSearch, VectorShares


@dataclass(frozen=True)
class Group:
    """The tasks that become one model, for one seed: a live model with every task's own trained head.

    pretrained: the parameters that are merged, before fine-tuning.  models: task -> the same ones in
    its single-task model, grafted or fine-tuned.  grafts: the masks that these grafts come from, in
    the order of the tasks; none if whole models are merged.
    """

    seed: int
    shared: SharedModel
    anatomy: Anatomy
    pretrained: dict[str, Tensor]
    models: dict[str, dict[str, Tensor]]
    grafts: list[StoredMask]

    @classmethod
    def open(cls, kind: str, tasks: list[str], seed: int, params: Params, machine: Runtime) -> "Group":
        """Load what is to be merged: grafts from their mask files, or fine-tuned models."""
        anatomy = read_anatomy(paths.PRETRAINED)
        with seeded_torch("combination", seed):  # the new heads, which trained ones replace
            shared = SharedModel.load(paths.PRETRAINED, [read_task(task) for task in tasks], params.model, machine)
        for task, view in shared.views.items():
            view.put(read_tensors(paths.finetuned(task, seed), anatomy.names([HEAD])))
        if kind != GRAFTED:
            moved = anatomy.names([group for group in params.finetune.train if group != HEAD])
            models = {task: read_tensors(paths.finetuned(task, seed), moved) for task in tasks}
            return cls(seed, shared, anatomy, read_tensors(paths.PRETRAINED, moved), models, [])
        pretrained = read_tensors(paths.PRETRAINED, anatomy.region(params.graft.region).shapes)
        grafts = [_graft(task, seed, anatomy, params.graft.region, pretrained) for task in tasks]
        models = {
            task: transplant(pretrained, graft.values, graft.mask) for task, graft in zip(tasks, grafts, strict=True)
        }
        return cls(seed, shared, anatomy, pretrained, models, grafts)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Put merged parameters into the model that all tasks share."""
        next(iter(self.shared.views.values())).put(tensors)

    def head_bytes(self) -> int:
        """Bytes of all heads."""
        return sum(bytes_of(head.values()) for head in self.shared.heads().values())


def _graft(task: str, seed: int, anatomy: Anatomy, groups: list[str], pretrained: dict[str, Tensor]) -> StoredMask:
    region, path = anatomy.region(groups), paths.learned(task, seed)
    stored = read_mask(path)
    require_model(path, stored.about, region, region.fingerprint(pretrained), anatomy.name)
    return stored


# of an index in a mask file: the tensors of a model have fewer than 2^31 parameters
INDEX_BYTES = 4


def combine(method: str, group: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store what one merged model of a group predicts, how it was made and its scores; gives one line about it."""
    tasks = params.merge.groups[group]
    cell = Group.open(KINDS[method], tasks, seed, params, machine)
    tensors, facts = merge(method, cell, params.combination)
    cell.put(tensors)
    rows = []
    with progress(f"combination {method} {group}-{seed}", len(tasks), "task") as bar:
        for task in tasks:
            rows += _measured(cell, task, paths.merged_logits(method, group, task, seed), params)
            bar.update(1)
    header = {"stage": "combination", "method": method, "group": group, "seed": seed, "kind": KINDS[method]}
    header |= {"tasks": tasks, "model_parameters": cell.anatomy.parameters, "head_bytes": cell.head_bytes()}
    write_json(paths.merged_record(method, group, seed), {**header, **facts, "rows": rows})
    scores = ", ".join(f"{row['task']} {row['score']:.3f}" for row in rows if row["variant"] == MERGED)
    return f"combination {method} {group}-{seed}: {scores}"


def merge(method: str, cell: Group, settings: SimpleNamespace) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The merged parameters, and the facts of how they were made; `settings` is the `combination` section."""
    facts: dict[str, Any] = {"bytes": bytes_of(cell.pretrained.values())}
    if cell.grafts:
        # the union of the masks is the same by every rule
        united = stitch(cell.grafts, cell.pretrained, STITCHES.get(method, SUM))
        facts = {"bytes": _stored_bytes(united), "single_bytes": [_stored_bytes(graft) for graft in cell.grafts]}
        facts |= {"graftable": united.mask.region.size, "collisions": count_collisions(cell.grafts, cell.pretrained)}
        if method in STITCHES:
            return transplant(cell.pretrained, united.values, united.mask), facts
    vector = _vector(method, cell, settings.shares)
    if method not in TUNED:
        return shifted(cell.pretrained, vector, 1 / len(cell.models)), facts
    curve = alpha_curve(cell, vector, settings.search)
    alpha = choose_alpha(curve)
    dev = [{"alpha": point, "normalised": value} for point, value in sorted(curve.items())]
    return shifted(cell.pretrained, vector, alpha), {**facts, "alpha": alpha, "dev": dev}


def alpha_curve(cell: Group, vector: dict[str, Tensor], search: AlphaSearch) -> dict[float, float]:
    """alpha -> mean over tasks of accuracy on dev / that of the task's single model of the same kind."""
    dev = {task: view.encode(_dev_rows(task, cell.seed, search.dev_max)) for task, view in cell.shared.views.items()}
    singles = {}
    with progress("alphas on dev", len(search.alphas) + 1, "point") as bar:
        for task, model in cell.models.items():
            cell.put(model)
            singles[task] = _accuracy(cell, task, dev[task])
        bar.update(1)
        curve = {}
        for alpha in search.alphas:
            cell.put(shifted(cell.pretrained, vector, alpha))
            curve[alpha] = mean_normalised({task: _accuracy(cell, task, dev[task]) for task in dev}, singles)
            bar.update(1)
    return curve


def _vector(method: str, cell: Group, shares: VectorShares) -> dict[str, Tensor]:
    if method in (AVERAGE, ARITHMETIC, GRAFTED_ARITHMETIC):
        return summed(cell.pretrained, cell.models)
    if method == TIES:
        return elected(cell.pretrained, cell.models, shares.ties)
    if method == DARE:
        return dared(cell.pretrained, cell.models, shares.dare, cell.seed)
    raise ValueError(f"unknown method {method!r}")


def _dev_rows(task: str, seed: int, most: int) -> list[dict]:
    """At most so many dev rows, all if `most` is 0, drawn at random: the first ones may lack a label."""
    rows = read_rows(paths.sample(task, seed, "dev"))
    drawn = numpy_generator("combination", "dev", task, seed).permutation(len(rows))[: most or None]
    return [rows[number] for number in sorted(drawn)]


def _accuracy(cell: Group, task: str, examples: list[Example]) -> float:
    return accuracy(predict(cell.shared.views[task], examples).numpy(), [example.label for example in examples])


def _measured(cell: Group, task: str, target: Path, params: Params) -> list[Row]:
    """Store the logits of the test rows; gives the rows of the merged and of the single-task models."""
    n, view = params.merge.test_max, cell.shared.views[task]
    examples = view.encode(read_rows(paths.sample(task, cell.seed, "test"))[: n or None])
    labels = np.array([example.label for example in examples])
    merged = Predictions(view.task.labels, {task: labels}, {task: {MERGED: predict(view, examples).numpy()}})
    write_predictions(target, merged)
    together = _stored("reference", task, cell.seed, n) | _stored("evaluate", task, cell.seed, n) | merged
    return [{"task": task, **row} for row in score_rows(together, read_task(task), params.calibration.bins)]


def _stored(stage: str, task: str, seed: int, n: int) -> Predictions:
    """Stored predictions of single-task models for the first n rows of the task's own test set."""
    stored = read_predictions(paths.predictions(stage, task, seed))
    return first_rows(stored.part([task]), n)


def _stored_bytes(stored: StoredMask) -> int:
    """Bytes of the indices and values in a mask file, heads and header left out."""
    return stored.mask.selected * INDEX_BYTES + bytes_of(stored.values.values())
