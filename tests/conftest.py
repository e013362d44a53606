"""Fixtures: seeded tensors, and pico models, cells and a finished main pipeline, which are made once for all workers.

The process that hands out tests to workers reads this file first and runs none of them, so heavy imports are inside.
"""

from __future__ import annotations

import gc
import os
import runpy
import shutil
import signal
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cells import Cell

# started by nohup or as a job in the background, tests would have every process that they interrupt ignore it
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Files whose tests mostly wait come first: beside them the others keep the cores busy, and no worker is alone with one at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_dvc.py", "test_run.py", "test_installed.py"))


@pytest.fixture(scope="session", autouse=True)
def quick_torch():
    """One thread: pico models wait for each other otherwise."""
    import torch

    from skill_grafting.models.loading import quiet_transformers

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet_transformers()
    gc.freeze()  # what was imported is no garbage, and looking at it again and again takes a twentieth of the time
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """make_once(name, make): the folder of this name, which is filled once for all workers."""
    from tests.cells import made_once

    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    return lambda name, make: made_once(shared / name, make)


@pytest.fixture(scope="session")
def published(make_once):
    """The results of the last commit, in a folder of their own with this code."""
    from tests.committed import ROOT, committed

    def make(folder: Path) -> None:
        committed(folder, "docs", "masks", "metrics", "plots")
        (folder / "stages").symlink_to(ROOT / "stages")

    return make_once("published", make)


@pytest.fixture(scope="session")
def pico_bert(make_once):
    from tests.pico import save_bert

    return make_once("bert", save_bert)


@pytest.fixture(scope="session")
def pico_llama(make_once):
    from tests.pico import save_causal

    return make_once("llama", lambda folder: save_causal(folder, "llama"))


@pytest.fixture(scope="session")
def pico_gpt2(make_once):
    from tests.pico import save_causal

    return make_once("gpt2", lambda folder: save_causal(folder, "gpt2"))


@pytest.fixture(scope="session")
def make_cell(make_once, pico_bert, pico_llama):
    """make_cell(mode), or make_cell(mode, "pairs"): imported and fine-tuned by the project's own code."""
    from stages.text.models.importing import import_model
    from tests.cells import TASKS, Cell, rows_of
    from tests.pico import model_settings

    @cache
    def make(mode: str, task: str = "toy") -> Cell:
        source = pico_llama if mode == "autoregressive" else pico_bert
        before = make_once(f"{mode}-pretrained", lambda folder: import_model(source, model_settings(mode), folder))
        cell = Cell(mode, TASKS[task], before, before.with_name(f"{mode}-{task}"), rows_of(TASKS[task]))
        make_once(cell.finetuned_folder.name, cell.finetune)
        return cell

    return make


@pytest.fixture(scope="session")
def main_run(make_once, make_cell):
    """main_run(mode): a folder in which the main pipeline has run on the tasks toy and pairs."""
    from tests.cells import TASKS, run_main

    def make(mode: str) -> Path:
        return make_once(f"{mode}-run", lambda folder: run_main(folder, [make_cell(mode, task) for task in TASKS]))

    return make


@pytest.fixture
def after_main(project, main_run):
    """after_main(mode): stand in a copy of that folder."""
    return lambda mode: shutil.copytree(main_run(mode), project, dirs_exist_ok=True)


@pytest.fixture
def triple():
    """(region, pretrained, finetuned) of seeded numbers; the region's order is not alphabetical."""
    import torch

    from skill_grafting.grafting.region import Region

    region = Region({"b.weight": (7, 5), "a.bias": (11,), "c.weight": (3, 2, 4), "d.scale": (1,)})
    generator = torch.Generator().manual_seed(7)
    pretrained = {name: torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
    moved = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
    return region, pretrained, {name: values + moved[name] for name, values in pretrained.items()}


@pytest.fixture
def command(monkeypatch, capsys):
    """command(module, *words): `python -m module` with these words, in this process; exit code, output, errors."""

    def run(module: str, *words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [module, *map(str, words)])
        capsys.readouterr()
        code = 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
            try:
                runpy.run_module(module, run_name="__main__")
            except SystemExit as left:
                code = left.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
