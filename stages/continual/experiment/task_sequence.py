"""A sequence of tasks on one shared model, which every method of continual learning starts from."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from skill_grafting.data.batching import shuffled
from skill_grafting.data.encoding import Example
from skill_grafting.io import read_rows
from skill_grafting.models.anatomy import HEAD
from skill_grafting.models.label_model import LabelModel
from skill_grafting.models.loading import bytes_of
from skill_grafting.models.shared import SharedModel
from skill_grafting.runtime import Runtime, numpy_generator, seeded_torch
from skill_grafting.settings import FinetuneParams, ModelParams, Params
from skill_grafting.training.finetuning import plan_for, steps_for
from skill_grafting.training.training import Batches, TrainPlan
from stages.workflow.core import paths
from stages.workflow.core.stored import chosen_point, read_task


@dataclass
class TaskSequence:
    """The shared model, live, and what its tasks are learned from.

    Each task is trained as in its own fine-tuning: at the grid point that was chosen there, with the same random head,
    batches and dropout, whichever tasks came before, but for the learning rate, of which some multiples are tried.  So the
    first task of a naive sequence is that fine-tuning at its own rate, bit for bit where the caps on steps agree.
    `rows`: task -> split -> rows; `finetune` is the section with the cap of the sequence.
    """

    shared: SharedModel
    rows: dict[str, dict[str, list[dict]]]
    chosen: dict[str, dict[str, Any]]
    finetune: FinetuneParams
    model: ModelParams
    seed: int
    rate_factors: list[float]
    learned: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, order: list[str], seed: int, params: Params, machine: Runtime) -> "TaskSequence":
        """Load the pretrained model and the rows of these tasks; raises ModelError if one wasn't fine-tuned."""
        specs = [read_task(task) for task in order]
        splits = ("train", "dev", "test")
        rows = {task: {split: read_rows(paths.sample(task, seed, split)) for split in splits} for task in order}
        chosen = {task: chosen_point(task, seed) for task in order}
        settings = params.finetune.model_copy(update={"max_steps": params.sequence.max_steps})
        with seeded_torch("sequence", seed):  # no head of a load for all is used: see new_head
            shared = SharedModel.load(paths.PRETRAINED, specs, params.model, machine, settings.dropout)
        return cls(shared, rows, chosen, settings, params.model, seed, params.sequence.rate_factors)

    def view(self, task: str) -> LabelModel:
        """The shared model as it reads this task."""
        return self.shared.views[task]

    def steps(self, task: str) -> int:
        """Optimizer steps of one training of a task."""
        return steps_for(self.finetune, len(self.view(task).task.labels), len(self.rows[task]["train"]))

    def plans(self, task: str) -> dict[float, TrainPlan]:
        """The plan of a task's own training, at each multiple of its learning rate."""
        size, rate = (self.chosen[task][name] for name in ("batch_size", "learning_rate"))
        return {factor: plan_for(self.finetune, size, factor * rate, self.steps(task)) for factor in self.rate_factors}

    def new_head(self, task: str) -> None:
        """Give a task the head that its own fine-tuning started from; torch's generator has to be seeded for it."""
        view = self.view(task)
        alone = LabelModel.load(paths.PRETRAINED, view.task, self.model, view.runtime, self.finetune.dropout)
        view.put({name: alone.parameters()[name].detach() for name in self.shared.heads()[task]})

    def batches(self, task: str, examples: list[Example], batch_size: int, *purpose: object) -> Batches:
        """Endless shuffled batches of a task, the same ones for the same purpose."""
        rows = shuffled(examples, batch_size, numpy_generator(*purpose, task, self.seed))
        return ([(self.view(task), [examples[row] for row in batch])] for batch in rows)

    def shared_names(self, names: set[str], task: str) -> set[str]:
        """Those of a view's names that all tasks share."""
        groups = self.view(task).groups()
        return {name for name in names if groups[name] != HEAD}

    def head(self, task: str) -> dict[str, Tensor]:
        """A copy of a task's own head, on the CPU; empty where the vocabulary head serves all tasks."""
        return {name: weight.detach().cpu().clone() for name, weight in self.shared.heads()[task].items()}

    def head_bytes(self, tasks: Iterable[str]) -> int:
        """Bytes of the heads of these tasks."""
        return bytes_of(weight for task in tasks for weight in self.shared.heads()[task].values())

    def model_bytes(self) -> int:
        """Bytes of one model without any head."""
        return bytes_of(self.shared.parameters().values()) - self.head_bytes(self.rows)
