"""Fixtures: seeded tensors, and one fine-tuned pico cell for each mode, made once a session.

The process that hands out tests to workers reads this file first and runs none of them, so heavy imports are inside.
"""

from __future__ import annotations

import gc
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stages.lib.io import write_json, write_rows
from stages.workflow.core import paths

if TYPE_CHECKING:
    from torch import Tensor

    from stages.lib.grafting.region import Region
    from stages.lib.models.anatomy import ModelSpec
    from stages.lib.models.label_model import LabelModel
    from stages.lib.training.finetuning import TrainingCell

# started by nohup or as a job in the background, tests would have every process that they interrupt ignore it
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Cell:
    """A pretrained and a fine-tuned folder of one mode, with the rows between them."""

    mode: str
    pretrained_folder: Path
    finetuned_folder: Path
    anatomy: ModelSpec
    rows: dict[str, list[dict]]

    @property
    def region(self) -> Region:
        """Everything in the layers."""
        return self.anatomy.region(["layers"])

    def pretrained(self) -> dict[str, Tensor]:
        """The region's values before fine-tuning."""
        from stages.lib.models.loading import read_tensors

        return read_tensors(self.pretrained_folder, self.region.shapes)

    def finetuned(self) -> dict[str, Tensor]:
        """The region's values after fine-tuning."""
        from stages.lib.models.loading import read_tensors

        return read_tensors(self.finetuned_folder, self.region.shapes)

    def load(self, which: str = "finetuned", batch_tokens: int = 2048) -> LabelModel:
        """A model of its own for a test to change."""
        from stages.lib.models.label_model import LabelModel
        from tests.pico import TOY, model_settings, runtime

        folder = self.finetuned_folder if which == "finetuned" else self.pretrained_folder
        return LabelModel.load(folder, TOY, model_settings(self.mode), runtime(batch_tokens))

    def to_train(self, seed: int = 0) -> TrainingCell:
        """The pretrained folder and the rows, as fine-tuning takes them."""
        from stages.lib.training.finetuning import TrainingCell
        from tests.pico import TOY, model_settings, runtime

        return TrainingCell(TOY, seed, self.rows, model_settings(self.mode), runtime(), self.pretrained_folder)

    def lay_out(self, seed: int) -> None:
        """Write models, task and rows where the main pipeline has them of a cell, in the folder that a test stands in."""
        from tests.pico import TOY

        shutil.copytree(self.pretrained_folder, paths.PRETRAINED)
        shutil.copytree(self.finetuned_folder, paths.finetuned(TOY.name, seed))
        write_json(paths.card(TOY.name), {"task": TOY.model_dump()})
        for split, rows in self.rows.items():
            write_rows(paths.sample(TOY.name, seed, split), rows)


@pytest.fixture(scope="session", autouse=True)
def quick_torch():
    """One thread: pico models wait for each other otherwise."""
    import torch

    from stages.lib.models.loading import quiet_transformers

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet_transformers()
    gc.freeze()  # what was imported is no garbage, and looking at it again and again takes a twentieth of the time
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pico_bert(tmp_path_factory):
    from tests.pico import save_bert

    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def pico_llama(tmp_path_factory):
    from tests.pico import save_causal

    return save_causal(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def pico_gpt2(tmp_path_factory):
    from tests.pico import save_causal

    return save_causal(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture(scope="session")
def make_cell(tmp_path_factory, pico_bert, pico_llama):
    """make_cell(mode): imported and fine-tuned by the project's own code, once for each mode."""
    from stages.lib.models.importing import import_model
    from stages.lib.models.loading import save_model
    from stages.lib.training.finetuning import finetune
    from tests.pico import finetune_settings, model_settings, toy_rows

    made = {}

    def make(mode: str) -> Cell:
        if mode not in made:
            folder = tmp_path_factory.mktemp(mode)
            source = pico_llama if mode in ("autoregressive", "generative") else pico_bert
            anatomy = import_model(source, model_settings(mode), folder / "pretrained")
            rows = {"train": toy_rows(32, 1), "dev": toy_rows(32, 2), "test": toy_rows(200, 3)}
            cell = Cell(mode, folder / "pretrained", folder / "finetuned", anatomy, rows)
            done = finetune(cell.to_train(), finetune_settings(learning_rates=[1e-2], max_steps=40))
            save_model(done.model.model, done.model.tokenizer, cell.finetuned_folder)
            made[mode] = cell
        return made[mode]

    return make


@pytest.fixture
def triple():
    """(region, pretrained, finetuned) of seeded numbers; the region's order is not alphabetical."""
    import torch

    from stages.lib.grafting.region import Region

    region = Region({"b.weight": (7, 5), "a.bias": (11,), "c.weight": (3, 2, 4), "d.scale": (1,)})
    generator = torch.Generator().manual_seed(7)
    pretrained = {name: torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
    moved = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
    return region, pretrained, {name: values + moved[name] for name, values in pretrained.items()}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
