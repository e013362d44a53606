"""Joint models: on disk, an ordinary model folder with the heads of all tasks beside it; and one opened.

Skills are looked for and grafted from an opened one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from skill_grafting.localizers.localizer import Objective
from skill_grafting.support.errors import ModelError
from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_rows
from stages.multitask.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.models.importing import save_model
from stages.text.models.objective import objective_of
from stages.text.models.shared import SharedModel
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import ModelParams
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths

HEADS = "heads.safetensors"


@dataclass(frozen=True)
class JointCell(GraftCell):
    """A cell whose fine-tuned model is a joint one: `shared` reads it for each task; `task`, `model` and `head` are the first's."""

    paradigm: str
    shared: SharedModel

    def rows_of(self, task: str, split: str = "train") -> list[dict]:
        """A task's rows of a split."""
        return read_rows(paths.sample(task, self.seed, split))

    def objective_of(self, task: str, words: tuple[object, ...], dev_rows: list[dict] | None = None) -> Objective:
        """The loss on a task's training rows; equal `words` give equal batches."""
        return objective_of(self.shared.views[task], self.region.shapes, self.rows_of(task), dev_rows, words)

    def header(self) -> dict[str, Any]:
        """The entries that every record and mask of this cell has, but for the task."""
        about = self.about()
        del about["task"]
        return {"paradigm": self.paradigm, **about}


def open_joint(paradigm: str, seed: int, tasks: list[str], params: Settings, runtime: Runtime) -> JointCell:
    """Load the joint model of a seed and reset it; takes `model` and `graft.region` from the params."""
    shared = load_joint(paths.joint(paradigm, seed), tasks, params.model, runtime)
    return joint_cell(shared, paradigm, seed, params.graft.region)


def joint_cell(shared: SharedModel, paradigm: str, seed: int, region_groups: list[str]) -> JointCell:
    """Take a loaded joint model, which is reset."""
    return JointCell(**vars(GraftCell.of(shared.first, seed, region_groups)), paradigm=paradigm, shared=shared)


def evaluation_of(shared: SharedModel, task: str, seed: int, n: int, variants: int) -> Evaluation:
    """An evaluation of so many variants on the first n test rows of a task, all if n is 0."""
    rows = read_rows(paths.sample(task, seed, "test"))[: n or None]
    return Evaluation(shared.views[task], {task: rows}, variants)


def save_joint(shared: SharedModel, folder: Path) -> None:
    """Write an ordinary model folder without heads, and all tasks' heads beside it, as `<task>/<name>`."""
    view = shared.first
    folder.mkdir(parents=True, exist_ok=True)
    heads = {
        f"{task}/{name}": values.detach().contiguous()
        for task, head in shared.heads().items()
        for name, values in head.items()
    }
    save_file(heads, folder / HEADS)
    save_model(view.model, view.tokenizer, folder, [name for name, group in groups_of(view).items() if group == HEAD])


def load_joint(folder: Path, tasks: Iterable[str], settings: ModelParams, runtime: Runtime) -> SharedModel:
    """A joint model with the heads of these tasks.

    Raises ModelError if the folder is missing or damaged, or hasn't got a task's head.
    """
    try:
        heads: dict[str, dict[str, Tensor]] = {task: {} for task in tasks}
        for name, values in load_file(folder / HEADS).items():
            task, _, name = name.partition("/")
            heads.setdefault(task, {})[name] = values
        return SharedModel.load(folder, [read_task(task) for task in tasks], settings, runtime, heads=heads)
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{folder / HEADS}: missing or damaged: {error}") from error
