"""Pico cells fine-tuned by the project's own code, and what the main pipeline leaves of two of them."""

import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from filelock import FileLock
from torch import Tensor

from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.io import write_json, write_rows
from stages.evaluate import predict_grafts
from stages.reference import predict_reference
from stages.study.anchor import anchor
from stages.text.models.importing import save_model
from stages.text.models.label_model import LabelModel
from stages.text.tasks.tasks import TaskSpec
from stages.text.training.finetuning import TrainingCell, finetune
from stages.workflow.cells.cells import GraftCell
from stages.workflow.stage import paths
from tests.pico import PAIRS, TOY, finetune_settings, graft_settings, model_settings, pair_rows, runtime, toy_rows

SEED, TASKS = 0, {"toy": TOY, "pairs": PAIRS}
TRAINING = finetune_settings(learning_rates=[1e-2], max_steps=40)
OTHER, OTHER_ROWS = "elsewhere", toy_rows(30, 9)


@dataclass(frozen=True)
class Cell:
    """A pretrained and a fine-tuned folder of one mode, with the rows between them."""

    mode: str
    task: TaskSpec
    pretrained_folder: Path
    finetuned_folder: Path
    rows: dict[str, list[dict]]

    @cached_property
    def anatomy(self) -> ModelSpec:
        """Groups and sizes of the pretrained model."""
        return read_anatomy(self.pretrained_folder)

    @property
    def region(self) -> Region:
        """Everything in the layers."""
        return self.anatomy.region(["layers"])

    def pretrained(self) -> dict[str, Tensor]:
        """The region's values before fine-tuning."""
        return read_tensors(self.pretrained_folder, self.region.shapes)

    def finetuned(self) -> dict[str, Tensor]:
        """The region's values after fine-tuning."""
        return read_tensors(self.finetuned_folder, self.region.shapes)

    def load(self, which: str = "finetuned", batch_tokens: int = 2048) -> LabelModel:
        """A model of its own for a test to change."""
        folder = self.finetuned_folder if which == "finetuned" else self.pretrained_folder
        return LabelModel.load(folder, self.task, model_settings(self.mode), runtime(batch_tokens))

    def to_train(self, seed: int = SEED) -> TrainingCell:
        """The pretrained folder and the rows, as fine-tuning takes them."""
        return TrainingCell(self.task, seed, self.rows, model_settings(self.mode), runtime(), self.pretrained_folder)

    def finetune(self, folder: Path) -> None:
        """Fill the fine-tuned folder, as the stage does."""
        done = finetune(self.to_train(), TRAINING)
        save_model(done.model.model, done.model.tokenizer, folder)
        write_json(folder / "training.json", done.record)

    def lay_out(self, seed: int = SEED) -> None:
        """Write models, task and rows where the main pipeline has them of a cell, in the folder that a test stands in."""
        shutil.copytree(self.pretrained_folder, paths.PRETRAINED, dirs_exist_ok=True)
        shutil.copytree(self.finetuned_folder, paths.finetuned(self.task.name, seed))
        write_json(paths.card(self.task.name), {"task": self.task.model_dump()})
        for split, rows in self.rows.items():
            write_rows(paths.sample(self.task.name, seed, split), rows)


def rows_of(task: TaskSpec) -> dict[str, list[dict]]:
    """The rows of a cell, by split."""
    make = pair_rows if task is PAIRS else toy_rows
    return {"train": make(32, 1), "dev": make(32, 2), "test": make(200, 3)}


def run_main(folder: Path, cells: list[Cell]) -> None:
    """Fill a folder with what the main pipeline makes of these cells, the mask being the tenth that moved most, and toy's anchor."""
    folder.mkdir()
    with chdir(folder):
        write_rows(paths.ood_table("toy", OTHER), OTHER_ROWS)
        for cell in cells:
            params = SimpleNamespace(
                model=model_settings(cell.mode), finetune=TRAINING, graft=graft_settings(), study=SimpleNamespace(test_max=0),
                anchor=SimpleNamespace(pruned=[0.5]), calibration=SimpleNamespace(bins=15, graft_alphas=[]),
            )  # fmt: skip
            cell.lay_out()
            predict_reference(cell.task.name, SEED, params.model, runtime())
            store_mask(GraftCell.open(cell.task.name, SEED, params.model, ["layers"], runtime()))
            predict_grafts(cell.task.name, SEED, params, runtime())
        anchor("toy", SEED, params, runtime())


def store_mask(cell: GraftCell) -> None:
    """Store the mask of the tenth that moved most, by movement and as if it had been learned."""
    mask = movement_mask(cell.pretrained, cell.finetuned, cell.region, cell.region.budget(0.1))
    stored = StoredMask(mask, cell.values_at(mask), cell.head, {**cell.origin(), "mode": cell.model.mode})
    for file in (paths.mask("movement", cell.task, SEED), paths.mask("learned", cell.task, SEED)):
        write_mask(file, stored)


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder that the first process to ask for it fills, and whoever asks meanwhile waits for."""
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(folder)
    return folder
