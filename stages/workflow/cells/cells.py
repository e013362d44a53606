"""One (task, seed): its fine-tuned model, opened once and turned into one variant after another."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.random import Generator
from torch import Tensor

from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.localizer import Budget, Localizer, Objective, find_masks
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_rows
from stages.text.models.label_model import LabelModel, reset_to_pretrained
from stages.text.models.objective import draws, objective_of
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import ModelParams
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths


@dataclass(frozen=True)
class GraftCell:
    """The live model at its pretrained values except for a trained head, with both sets of the region's values (on its device)."""

    task: str
    seed: int
    model: LabelModel
    anatomy: ModelSpec
    region: Region
    pretrained: dict[str, Tensor]
    finetuned: dict[str, Tensor]
    head: dict[str, Tensor]

    @classmethod
    def open(
        cls, task: str, seed: int, settings: ModelParams, region_groups: list[str], runtime: Runtime
    ) -> "GraftCell":
        """Load the fine-tuned model of a cell and reset it; `settings` is the `model` section."""
        model = LabelModel.load(paths.finetuned(task, seed), read_task(task), settings, runtime)
        return cls.of(model, seed, region_groups)

    @classmethod
    def of(
        cls, model: LabelModel, seed: int, region_groups: list[str], pretrained_folder: Path = paths.PRETRAINED
    ) -> "GraftCell":
        """Take a loaded fine-tuned model, which is reset."""
        anatomy = read_anatomy(pretrained_folder)
        region = anatomy.region(region_groups, "graft.region")
        parameters = model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in region.shapes}
        head = {name: parameters[name].detach().cpu().clone() for name in anatomy.names([HEAD])}
        pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, region.shapes)
        return cls(model.task.name, seed, model, anatomy, region, pretrained, finetuned, head)

    def objective(self, train_rows: list[dict] | None = None) -> Objective:
        """The loss on its training rows, or on these; localizers may choose by dev.  The cell's weights may change from here on."""
        rows = self.rows("train") if train_rows is None else train_rows
        return objective_of(self.model, self.region.shapes, rows, self.rows("dev"), ("mask", self.task, self.seed))

    def masks(
        self, localizer: Localizer, sizes: list[float], setting: str, loss: Objective, seed: Generator, title: str = ""
    ) -> dict[float, GraftMask]:
        """Size -> the mask by a localizer, each as if it were the only one; `setting` names the sizes in messages."""
        budgets = [Budget.of(self.region, size, setting) for size in sizes]
        ends = self.pretrained, self.finetuned
        return dict(zip(sizes, find_masks(localizer, loss, self.region, ends, budgets, seed, title), strict=True))

    def draws(self, localizer: str) -> Generator:
        """The generator of a localizer's random draws, which do not depend on other localizers."""
        return draws(localizer, self.task, self.seed)

    def rows(self, split: str) -> list[dict]:
        """The cell's own rows of a split."""
        return read_rows(paths.sample(self.task, self.seed, split))

    def values_at(self, mask: GraftMask) -> dict[str, Tensor]:
        """The fine-tuned values that a mask selects, on the CPU."""
        return {name: part.cpu() for name, part in values_at(self.finetuned, mask).items()}

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the pretrained region (Region.fingerprint)."""
        return fingerprint(self.region, self.pretrained)

    def origin(self) -> dict[str, Any]:
        """The model and cell that a mask belongs to, for its header."""
        return {"fingerprint": self.fingerprint, "model": self.anatomy.name, "task": self.task, "seed": self.seed}

    def about(self) -> dict[str, Any]:
        """The entries that every record of this cell has."""
        sizes = {"graftable": self.region.size, "model_parameters": self.anatomy.parameters}
        return {"task": self.task, "seed": self.seed, **sizes}
