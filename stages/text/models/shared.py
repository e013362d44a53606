"""One backbone that several tasks read: multi-task training, continual learning, merged models."""

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from skill_grafting.grafting.region import Tensors
from skill_grafting.support.fields import HEAD
from stages.text.models.label_model import LabelModel, train_only
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import ModelParams
from stages.text.tasks.tasks import TaskSpec


class SharedModel:
    """`views`: task -> the LabelModel that reads the shared weights for it.

    standard: each task has a head of its own, perhaps with a pooler, on one backbone.  prompt and autoregressive: one model
    with one vocabulary head, and each task has its label words.  What is put into one view's shared
    weights, all views see.
    """

    def __init__(self, views: dict[str, LabelModel]) -> None:
        self.views = views

    @classmethod
    def load(
        cls,
        folder: Path,
        tasks: list[TaskSpec],
        settings: ModelParams,
        runtime: Runtime,
        dropout: float | None = None,
        heads: Mapping[str, Tensors] | None = None,
    ) -> "SharedModel":
        """The model of a folder for all these tasks, with trained heads (task -> tensors, KeyError if one is missing), or new ones.

        New heads start from torch's global generator, task by task.
        """
        first = LabelModel.load(folder, tasks[0], settings, runtime, dropout)
        views = {tasks[0].name: first}
        for task in tasks[1:]:
            if first.mode == "standard":
                views[task.name] = LabelModel.load(folder, task, settings, runtime, dropout)
                _share_backbone(first, views[task.name])
            else:
                views[task.name] = LabelModel(first.model, first.tokenizer, task, first.mode, first.max_length, runtime)
        shared = cls(views)
        for task, own in shared.heads().items() if heads is not None else ():
            views[task].put({name: heads[task][name] for name in own})
        return shared

    @property
    def first(self) -> LabelModel:
        """The view of the first task, as good as any other to reach the shared weights."""
        return next(iter(self.views.values()))

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter, live: the shared ones by name, those of a head as `<task>:<name>`."""
        weights: dict[str, Tensor] = {}
        for task, view in self.views.items():
            groups = groups_of(view)
            weights |= {
                f"{task}:{name}" if groups[name] == HEAD else name: weight for name, weight in view.parameters().items()
            }
        return weights

    def heads(self) -> dict[str, dict[str, Tensor]]:
        """Task -> its own head's parameters by their name in the view, live; empty where the head is shared."""
        return {
            task: {name: view.parameters()[name] for name, group in groups_of(view).items() if group == HEAD}
            for task, view in self.views.items()
        }

    def train_only(self, names: set[str]) -> dict[str, Tensor]:
        """Let gradients flow to these parameters alone, by the names of `parameters`; gives them, live."""
        return train_only(self.parameters(), names)


def _share_backbone(first: LabelModel, view: LabelModel) -> None:
    """Let a view read the backbone of the first one, but for the modules in it that are part of the head."""
    prefix, backbone = first.model.base_model_prefix, first.model.base_model
    paths = (name.split(".") for name, group in groups_of(first).items() if group == HEAD)
    own = {path[1]: view.model.base_model.get_submodule(path[1]) for path in paths if path[0] == prefix}
    if own:
        backbone = copy.copy(backbone)
        backbone._modules = {**backbone._modules, **own}
    setattr(view.model, prefix, backbone)
