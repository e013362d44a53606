"""Two processes that share each gradient find what one finds, and only the first one writes."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stages.lib import runtime
from stages.lib.errors import ParamsError, ProcessError
from stages.lib.io import read_json, replacing, write_json
from stages.lib.localizers.registry import Budget, find_mask
from stages.lib.models.cell import GraftCell
from stages.lib.models.evidence import evidence_of
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import loss_gradient
from stages.lib.models.sources import import_model
from stages.lib.processes import ALONE, Processes, join
from stages.lib.training.finetuning import finetune
from tests import pico
from tests.dvc_project import lay_out_cell, start_stage, wait_for
from tests.pico import TOY, finetune_settings, localizer_settings, model_settings, same, values_of

# of weights after 14 steps: the same numbers are added up in another order
TOLERANCE = 2e-6
# 32 examples in batches of 5, so that the last of an epoch has fewer than there are processes
SGD = {"optimizer": "sgd", "learning_rates": [0.05], "momentum": 0.9}
HARD = {"max_steps": 14, "batch_sizes": [5], "eval_steps": 4, **SGD}
# localizers by gradients of all examples, of the last two squared one by one
ONE_PASS = ("grown", "attribution", "fish", "talos")
LEARNING = {"steps": 6, "eval_steps": 3, "batch_size": 7}
SMALL = 40  # tokens of a batch of a gradient pass: several batches, of which one process has more


def results(cell: Any, processes: Processes) -> dict[str, Any]:
    """The computations of stages with gradients of batches: weights, and masks by learning and by single gradients."""
    machine = replace(pico.runtime(SMALL), processes=processes)
    tuned = finetune(replace(cell.to_train(), machine=machine), finetune_settings(**HARD))
    losses = [row["train_loss"] for row in tuned.record["curve"]]
    found: dict[str, Any] = {"weights": values_of(tuned.model), "losses": losses}
    for localizer in ("learned", *ONE_PASS):
        model = LabelModel.load(cell.finetuned_folder, TOY, model_settings(cell.mode), machine)
        opened = GraftCell.of(model, 0, ["layers"], cell.pretrained_folder)
        evidence = evidence_of(opened, localizer, cell.rows["train"], cell.rows["dev"])
        budget = Budget.of(cell.region, 0.02, "top_k", "graft.sparsity")
        settings = localizer_settings(localizer, **LEARNING if localizer == "learned" else {})
        found[localizer] = find_mask(localizer, evidence, settings, budget).mask.indices
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
    """The findings of both of two processes, and the folder that they wrote to."""
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
    assert largest_difference(first["weights"], alone["weights"]) <= TOLERANCE
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    for localizer in ("learned", *ONE_PASS):
        assert same(first[localizer], alone[localizer]) and same(first[localizer], second[localizer])


def test_the_comparison_would_see_examples_that_only_one_process_has(cell):
    unshared = type("Unshared", (Processes,), {"add_up": lambda *_: None})(2, 0)
    other, alone = (results(cell, processes)["weights"] for processes in (unshared, ALONE))
    assert largest_difference(other, alone) > 100 * TOLERANCE
    assert Processes(2, 0).share([0, 1, 2, 3, 4]) == [0, 2, 4] and Processes(3, 2).share([0, 1]) == []


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
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:33333")

    monkeypatch.setattr("accelerate.utils.reduce", gone)
    told = "one of the 2 processes that share the gradients has ended; runtime.processes=1"
    with pytest.raises(ProcessError, match=told):
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
        modules = model.model.named_modules()
        inside = [module for name, module in modules if name.endswith(("layers.1.mlp", "layer.1.attention"))]
        calls: list[int] = []
        inside[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model.model.train(training)
        with runtime.seeded_torch("dropout"):
            loss = loss_gradient(model, model.encode(cell.rows["train"]))
        found.append((loss, {name: weight.grad.clone() for name, weight in weights.items()}))
        forwards.append(len(calls))
    assert forwards[1] == 2 * forwards[0] > 0
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])


def test_a_decoder_with_a_head_computes_its_activations_again_too(pico_llama, tmp_path):
    import_model(pico_llama, model_settings("standard"), tmp_path / "model")
    losses = []
    for again in (False, True):
        machine = replace(pico.runtime(), gradient_checkpointing=again)
        with runtime.seeded_torch("head"):
            model = LabelModel.load(tmp_path / "model", TOY, model_settings("standard"), machine)
        losses.append(loss_gradient(model, model.encode(pico.toy_rows(8))))
    assert losses[0] == losses[1]


# --- A real stage --------------------------------------------------------------------------------------------------


def children(process: subprocess.Popen) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stages_run_in_two_processes_and_a_killed_one_ends_all(cell, project):
    from safetensors.torch import load_file

    values = lay_out_cell(cell)
    values["finetune"] |= {"max_steps": 60, "dropout": 0.0}
    values["movement"]["keep"] = values["graft"]["sparsity"] = 0.02

    def start(stage: str, processes: int) -> subprocess.Popen:
        values["runtime"]["processes"] = processes
        return start_stage(stage, values)

    def started() -> tuple[subprocess.Popen, int]:
        process = start("finetune", 2)
        [other] = wait_for(lambda: children(process), 60)
        time.sleep(15)
        return process, other

    found = {}
    for number in (1, 2):
        shutil.rmtree("models/finetuned")
        for stage in ("finetune", "movement", "mask"):
            process = start(stage, number)
            said, error = process.communicate()
            assert (process.returncode, error) == (0, "") and len(said.splitlines()) == 1
        files = ("models/finetuned/13/toy/model.safetensors", "masks/learned/13/toy.safetensors")
        found[number] = [load_file(file) for file in files]
        assert not [*Path().rglob("*.partial")]
    assert largest_difference(found[1][0], found[2][0]) <= 1e-5
    one, two = ({name: values.shape for name, values in found[number][1].items()} for number in (1, 2))
    assert one == two
    values["finetune"] |= {"max_steps": None, "steps_per_example": 1e6}  # as long as it takes
    process, other = started()
    os.kill(other, signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    told = "one of the 2 processes that share the gradients has ended; runtime.processes=1 would show why"
    assert process.returncode == 2 and error == f"finetune@toy-13: {told}\n"
    process, other = started()
    process.kill()
    process.communicate()
    wait_for(lambda: not Path(f"/proc/{other}").exists(), 60)
