"""Two processes that share each gradient find what one finds, and only the first one writes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch import Tensor

from stages.lib import runtime
from stages.lib.errors import ParamsError, ProcessError
from stages.lib.io import read_json, replacing, write_json
from stages.lib.localizers.registry import Budget, find_mask
from stages.lib.models.cell import GraftCell
from stages.lib.models.evidence import evidence_of
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import loss_gradient
from stages.lib.processes import ALONE, Processes, join
from stages.lib.training.finetuning import TrainingCell, finetune
from tests import pico
from tests.pico import TOY, finetune_settings, localizer_settings, model_settings, same, values_of

ROOT = Path(__file__).parents[1]
# of weights after 14 steps: the same numbers are added up in another order
TOLERANCE = {"rtol": 0.0, "atol": 2e-6}
# 32 examples in batches of 5, so that the last of an epoch has fewer than there are processes
HARD = {
    "max_steps": 14,
    "batch_sizes": [5],
    "eval_steps": 4,
    "optimizer": "sgd",
    "learning_rates": [0.05],
    "momentum": 0.9,
}
# localizers by gradients of all examples, of the last two squared one by one
ONE_PASS = ("grown", "attribution", "fish", "talos")
SMALL = 40  # tokens of a batch of a gradient pass: several batches, of which one process has more


def results(cell: Any, processes: Processes) -> dict[str, Any]:
    """What stages compute with gradients of batches: weights, and masks by learning and by single gradients."""
    machine = replace(pico.runtime(SMALL), processes=processes)
    where = TrainingCell(TOY, 0, cell.rows, model_settings(cell.mode), machine, cell.pretrained_folder)
    tuned = finetune(where, finetune_settings(**HARD))
    found: dict[str, Any] = {
        "weights": values_of(tuned.model),
        "losses": [row["train_loss"] for row in tuned.record["curve"]],
    }
    for localizer, settings in (
        ("learned", {"steps": 6, "eval_steps": 3, "batch_size": 7}),
        *((name, {}) for name in ONE_PASS),
    ):
        model = LabelModel.load(cell.finetuned_folder, TOY, model_settings(cell.mode), machine)
        opened = GraftCell.of(model, 0, ["layers"], cell.pretrained_folder)
        evidence = evidence_of(opened, localizer, cell.rows["train"], cell.rows["dev"])
        budget = Budget.of(cell.region, 0.02, "top_k", "graft.sparsity")
        found[localizer] = find_mask(
            localizer, evidence, localizer_settings(localizer, **settings), budget
        ).mask.indices
    return found


def shared_results(rank: int, cell: Any, folder: Path, port: int) -> None:
    """`results` in one of two processes, written where its rank says."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = join(2, on_cpu=True)
    assert processes == Processes(2, rank)
    torch.save(results(cell, processes), folder / f"{rank}.pt")
    write_json(folder / "written.json", rank)


@pytest.fixture(scope="module")
def cell(make_cell):
    return make_cell("prompt")


@pytest.fixture(scope="module")
def together(cell, tmp_path_factory):
    """What both of two processes have found, and the folder that they wrote to."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("shared")
    torch.multiprocessing.start_processes(shared_results, (cell, folder, port), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)], folder


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_two_processes_find_the_weights_and_masks_that_one_finds(cell, together):
    (first, second), _ = together
    alone = results(cell, ALONE)
    assert same(first["weights"], second["weights"])  # to the bit
    assert largest_difference(first["weights"], alone["weights"]) <= TOLERANCE["atol"]
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    for localizer in ("learned", *ONE_PASS):
        assert same(first[localizer], alone[localizer]) and same(first[localizer], second[localizer])


def test_the_comparison_would_see_examples_that_only_one_process_has(cell):
    half = Processes(2, 0)
    unshared = type("Unshared", (Processes,), {"add_up": lambda *_: None})(2, 0)
    assert (
        largest_difference(results(cell, unshared)["weights"], results(cell, ALONE)["weights"])
        > 100 * TOLERANCE["atol"]
    )
    assert half.share([0, 1, 2, 3, 4]) == [0, 2, 4] and Processes(3, 2).share([0, 1]) == []


def test_only_the_first_process_writes(together):
    _, folder = together
    assert read_json(folder / "written.json") == 0
    assert {path.name for path in folder.iterdir()} == {"0.pt", "1.pt", "written.json"}


def test_a_process_that_writes_nothing_can_still_read_what_it_would_have_written(tmp_path, monkeypatch):
    monkeypatch.setattr("stages.lib.io._writing", [False])
    with replacing(tmp_path / "file") as partial:
        partial.write_text("something")
        assert partial.read_text() == "something"
    assert [*tmp_path.iterdir()] == []


def test_another_number_of_processes_than_the_settings_say_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ParamsError, match=r"runtime.processes: is 2, but 3 processes were launched; set it to 3"):
        join(2, on_cpu=True)


def test_a_lost_process_is_told_in_one_line(monkeypatch):
    def gone(*_: Any) -> None:
        raise RuntimeError(
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:33333"
        )

    monkeypatch.setattr("accelerate.utils.reduce", gone)
    with pytest.raises(
        ProcessError, match="one of the 2 processes that share the gradients has ended; runtime.processes=1"
    ):
        Processes(2, 0).add_up([torch.zeros(1)])


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ParamsError, match="runtime.processes: 2 need a GPU each, and 1 are seen here; lower it"):
        runtime.device_of("auto", 2)
    assert runtime.device_of("cpu", 2).type == "cpu"


# --- Gradient checkpointing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["prompt", "standard", "autoregressive", "generative"])
@pytest.mark.parametrize("training", [False, True])
def test_activations_that_are_computed_again_give_the_same_gradients(mode, training, make_cell):
    cell, found, forwards = make_cell(mode), [], []
    for again in (False, True):
        machine = replace(pico.runtime(), gradient_checkpointing=again)
        with runtime.seeded_torch("head"):
            model = LabelModel.load(cell.pretrained_folder, TOY, model_settings(mode), machine, dropout=0.2)
        weights = model.train_only({*cell.region.shapes})
        inside = [
            module
            for name, module in model.model.named_modules()
            if name.endswith("layers.1.mlp") or name.endswith("layer.1.attention")
        ]
        calls: list[int] = []
        inside[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model.model.train(training)
        with runtime.seeded_torch("dropout"):
            loss = loss_gradient(model, model.encode(cell.rows["train"]))
        found.append((loss, {name: weight.grad.clone() for name, weight in weights.items()}))
        forwards.append(len(calls))
    assert forwards[1] == 2 * forwards[0] > 0
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])


# --- A real stage --------------------------------------------------------------------------------------------------


@pytest.fixture
def stages(cell, project):
    """A project with all code, and one cell of a pico model: `start(stage, processes)`."""
    shutil.copytree(ROOT / "stages", "stages", ignore=shutil.ignore_patterns("__pycache__", "dvc.lock"))
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    cell.lay_out(13)
    yaml = YAML()
    values = yaml.load(ROOT / "params.yaml")
    values |= {"tasks": ["toy"], "seeds": [13], "task": {"toy": TOY.model_dump()}}
    values["finetune"] |= {"max_steps": 60, "dropout": 0.0}
    values["movement"]["keep"] = values["graft"]["sparsity"] = 0.02
    values["ood"]["sets"] = {}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DVC")}

    def start(stage: str, processes: int, *before: str, **more: Any) -> subprocess.Popen:
        values["runtime"]["processes"] = processes
        values["finetune"] |= more
        yaml.dump(values, Path("params.yaml"))
        command = [sys.executable, *before, "-m", f"stages.{stage}", "--task", "toy", "--seed", "13"]
        return subprocess.Popen(
            command,
            env=environment | {"PYTHONPATH": str(project)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return SimpleNamespace(start=start)


def children(process: subprocess.Popen) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stages_run_in_two_processes_and_a_killed_one_ends_all(stages):
    from safetensors.torch import load_file

    found = {}
    for number in (1, 2):
        shutil.rmtree("models/finetuned")
        for stage in ("finetune", "movement", "mask"):
            process = stages.start(stage, number)
            said, error = process.communicate()
            assert process.returncode == 0, error
            assert error == "" and len(said.splitlines()) == 1
        found[number] = (
            load_file("models/finetuned/13/toy/model.safetensors"),
            load_file("masks/learned/13/toy.safetensors"),
        )
        assert not [*Path().rglob("*.partial")]
    assert largest_difference(found[1][0], found[2][0]) <= 1e-5
    assert {name: values.shape for name, values in found[1][1].items()} == {
        name: values.shape for name, values in found[2][1].items()
    }
    # as long as it takes
    process = stages.start("finetune", 2, max_steps=None, steps_per_example=1e6)
    [other] = wait_for(lambda: children(process))
    time.sleep(15)
    os.kill(other, signal.SIGKILL)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert (
        error
        == "finetune@toy-13: one of the 2 processes that share the gradients has ended; runtime.processes=1 would show why\n"
    )
    process = stages.start("finetune", 2)
    [other] = wait_for(lambda: children(process))
    time.sleep(15)
    process.kill()
    process.communicate()
    wait_for(lambda: not Path(f"/proc/{other}").exists())
