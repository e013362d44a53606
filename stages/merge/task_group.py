"""The models of several tasks that are to become one, loaded onto one live model."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.graft.apply import transplant
from stages.lib.graft.mask_file import StoredMask, read_mask, require_model
from stages.lib.graft.region import Tensors
from stages.lib.metrics.variants import GRAFTED
from stages.lib.models.anatomy import Anatomy, read_anatomy
from stages.lib.models.groups import HEAD
from stages.lib.models.loading import read_tensors
from stages.lib.models.shared import SharedModel
from stages.lib.runtime import Runtime, seeded_torch


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
    def open(cls, kind: str, tasks: list[str], seed: int, params: Any, machine: Runtime) -> "Group":
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

    def heads(self) -> int:
        """Bytes of all heads."""
        return sum(bytes_of(head) for head in self.shared.heads().values())


def bytes_of(tensors: Tensors) -> int:
    """Bytes that the values of these tensors take."""
    return sum(values.numel() * values.element_size() for values in tensors.values())


def _graft(task: str, seed: int, anatomy: Anatomy, groups: list[str], pretrained: dict[str, Tensor]) -> StoredMask:
    region, path = anatomy.region(groups), paths.learned(task, seed)
    stored = read_mask(path)
    require_model(path, stored.about, region, region.fingerprint(pretrained), anatomy.name)
    return stored
