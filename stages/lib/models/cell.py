"""One (task, seed): its fine-tuned model, opened once and turned into one variant after another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import paths
from ..data.tasks import read_task
from ..graft.apply import values_at
from ..graft.mask import GraftMask
from ..graft.region import Region
from ..io import read_rows
from ..runtime import Runtime
from ..settings import ModelParams
from .anatomy import HEAD, Anatomy, read_anatomy
from .label_model import LabelModel, reset_to_pretrained


@dataclass(frozen=True)
class GraftCell:
    """The live model, pretrained but for a trained head, with both sets of the region's values (on its device)."""

    task: str
    seed: int
    model: LabelModel
    anatomy: Anatomy
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
        region = anatomy.region(region_groups)
        parameters = model.parameters()
        finetuned = {name: parameters[name].detach().clone() for name in region.shapes}
        head = {name: parameters[name].detach().cpu().clone() for name in anatomy.names([HEAD])}
        pretrained = reset_to_pretrained(model, anatomy, pretrained_folder, region.shapes)
        return cls(model.task.name, seed, model, anatomy, region, pretrained, finetuned, head)

    def rows(self, split: str) -> list[dict]:
        """The cell's own rows of a split."""
        return read_rows(paths.sample(self.task, self.seed, split))

    def values_at(self, mask: GraftMask) -> dict[str, Tensor]:
        """The fine-tuned values that a mask selects, on the CPU."""
        return {name: part.cpu() for name, part in values_at(self.finetuned, mask).items()}

    def fingerprint(self) -> str:
        """The mark that tells the region of this pretrained model from any other (Region.fingerprint)."""
        return self.region.fingerprint(self.pretrained)

    def origin(self) -> dict[str, Any]:
        """The model and cell that a mask or an order belongs to, for its header."""
        return {"fingerprint": self.fingerprint(), "model": self.anatomy.name, "task": self.task, "seed": self.seed}

    def about(self) -> dict[str, Any]:
        """The entries that every record of this cell has."""
        sizes = {"graftable": self.region.size, "model_parameters": self.anatomy.parameters}
        return {"task": self.task, "seed": self.seed, **sizes}
