"""Joint models: on disk, an ordinary model folder with the heads of all tasks beside it; and one opened.

Skills are looked for and grafted from an opened one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.digest import require_listed
from stages.lib.errors import ModelError
from stages.lib.evaluation.evaluation import Evaluation
from stages.lib.graft.region import Region
from stages.lib.io import read_rows
from stages.lib.models.anatomy import HEAD, Anatomy, read_anatomy
from stages.lib.models.label_model import reset_to_pretrained
from stages.lib.models.loading import save_model
from stages.lib.models.shared import SharedModel
from stages.lib.runtime import Runtime
from stages.lib.settings import ModelParams, Params

HEADS = "heads.safetensors"


@dataclass(frozen=True)
class JointCell:
    """The live model, pretrained but for trained heads, with both sets of the region's values (on its device)."""

    paradigm: str
    seed: int
    shared: SharedModel
    anatomy: Anatomy
    region: Region
    pretrained: dict[str, Tensor]
    joint: dict[str, Tensor]

    @classmethod
    def open(cls, paradigm: str, seed: int, tasks: list[str], params: Params, runtime: Runtime) -> "JointCell":
        """Load the joint model of a seed and reset it; takes `model` and `graft.region` from the params."""
        shared = load_joint(paths.joint(paradigm, seed), tasks, params.model, runtime)
        return cls.of(shared, paradigm, seed, params.graft.region)

    @classmethod
    def of(
        cls,
        shared: SharedModel,
        paradigm: str,
        seed: int,
        region_groups: list[str],
        pretrained_folder: Path = paths.PRETRAINED,
    ) -> "JointCell":
        """Take a loaded joint model, which is reset."""
        anatomy = read_anatomy(pretrained_folder)
        region = anatomy.region(region_groups)
        view = next(iter(shared.views.values()))
        parameters = view.parameters()
        joint = {name: parameters[name].detach().clone() for name in region.shapes}
        pretrained = reset_to_pretrained(view, anatomy, pretrained_folder, region.shapes)
        return cls(paradigm, seed, shared, anatomy, region, pretrained, joint)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Give these values to the weights that all tasks share."""
        next(iter(self.shared.views.values())).put(tensors)

    def rows(self, task: str, split: str = "train") -> list[dict]:
        """A task's rows of a split."""
        return read_rows(paths.sample(task, self.seed, split))

    def header(self) -> dict[str, Any]:
        """The entries that every record and mask of this cell has."""
        return {
            "paradigm": self.paradigm,
            "seed": self.seed,
            "graftable": self.region.size,
            "model_parameters": self.anatomy.parameters,
        }


def evaluation_of(shared: SharedModel, task: str, seed: int, n: int, variants: int) -> Evaluation:
    """An evaluation of so many variants on the first n test rows of a task, all if n is 0."""
    rows = read_rows(paths.sample(task, seed, "test"))[: n or None]
    return Evaluation(shared.views[task], {task: rows}, variants)


def save_joint(shared: SharedModel, folder: Path) -> None:
    """Write an ordinary model folder without heads, and all tasks' heads beside it, as `<task>/<name>`."""
    view = next(iter(shared.views.values()))
    folder.mkdir(parents=True, exist_ok=True)
    heads = {
        f"{task}/{name}": values.detach().contiguous()
        for task, head in shared.heads().items()
        for name, values in head.items()
    }
    save_file(heads, folder / HEADS)
    save_model(view.model, view.tokenizer, folder, [name for name, group in view.groups().items() if group == HEAD])


def load_joint(folder: Path, tasks: Iterable[str], settings: ModelParams, runtime: Runtime) -> SharedModel:
    """A joint model with the heads of these tasks.

    Raises ModelError if the folder is missing or damaged, or hasn't got a task's head.
    """
    shared = SharedModel.load(folder, [read_task(task) for task in tasks], settings, runtime)
    require_listed(folder, HEADS)
    try:
        with safe_open(folder / HEADS, framework="pt") as file:
            for task, head in shared.heads().items():
                shared.views[task].put({name: file.get_tensor(f"{task}/{name}") for name in head})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / HEADS}: missing or damaged, `dvc repro` makes it: {error}") from error
    return shared
