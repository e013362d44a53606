"""Stages side by side: in the order of the graph, no more at once than fit, and nothing left behind by a failure or a stop."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.commands.parallel.__main__ import count
from stages.lib.yaml12 import load_yaml
from tests.dvc_project import TINY, clone, make_original

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(120)
# notes when it began and ended, and on which GPU; makes `out` of its deps
STAGE = """
import json, os, sys, time
name, seconds, *deps = sys.argv[1:]
start = time.time()
time.sleep(float(seconds))
if name == "broken":
    sys.exit("the disk is made of cheese")
with open(name + ".txt", "w") as file:
    file.write(name + "".join(open(dep + ".txt").read() for dep in deps))
with open("runs.jsonl", "a") as file:
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    file.write(json.dumps({"name": name, "start": start, "end": time.time(), "gpu": gpu}) + "\\n")
"""
GRAPH = {"root": [], "left": ["root"], "right": ["root"], "last": ["left", "right"], "alone": []}
PAIR = {"left": [], "right": []}
RUN = """
import sys
from types import SimpleNamespace
from stages.commands.parallel.cluster import side_by_side
from stages.commands.parallel.tasks import find_tasks

if __name__ == "__main__":
    workers, memory, gpus, *targets = sys.argv[1:]
    costs = SimpleNamespace(seconds=lambda name: None, memory=lambda name: 600.0)
    tasks = find_tasks(targets or ["dvc.yaml"], costs)
    print("tasks", *(task.name for task in tasks))
    sys.exit(side_by_side(tasks, int(workers), {"MEMORY": float(memory), "GPU": float(gpus)}, {}))
"""


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    """A project of its own with a few stages that sleep."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(project / "site"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["dvc", "init", "-q"], check=True)
    Path("stage.py").write_text(STAGE)
    Path("run.py").write_text(RUN)
    Path("params.yaml").write_text("runtime: {threads: 1}\n")
    write_graph(GRAPH)
    return project


def write_graph(graph: dict[str, list[str]], seconds: float = 1.0) -> None:
    entries = {
        name: {
            "cmd": f"exec python stage.py {name} {seconds} {' '.join(deps)}",
            "deps": ["stage.py", *(f"{dep}.txt" for dep in deps)],
            "outs": [f"{name}.txt"],
            "params": ["runtime"] if name in ("left", "right") else [],
        }
        for name, deps in graph.items()
    }
    Path("dvc.yaml").write_text(json.dumps({"stages": entries}))


def start(*words: object) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "run.py", *map(str, words)], **pipes)


def run(workers: int = 2, memory: float = 1e6, gpus: int = 0, *targets: str) -> tuple[int, str, str]:
    """Exit code and what was printed."""
    process = start(workers, memory, gpus, *targets)
    out, error = process.communicate()
    return process.returncode, out, error


def runs() -> dict[str, dict]:
    """What each stage noted; every one ran once."""
    lines = [json.loads(line) for line in Path("runs.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in lines}) == len(lines)
    return {line["name"]: line for line in lines}


def together(one: dict, other: dict) -> bool:
    return one["start"] < other["end"] and other["start"] < one["end"]


def dvc(*words: str) -> str:
    return subprocess.run(["dvc", *words], capture_output=True, text=True, check=True).stdout


def test_what_needs_nothing_of_each_other_runs_at_once_and_dvc_finds_nothing_more_to_do(toy):
    assert run(2)[0] == 0
    noted = runs()
    assert {*noted} == {*GRAPH}
    assert together(noted["left"], noted["right"])
    for name, deps in GRAPH.items():
        assert all(noted[dep]["end"] <= noted[name]["start"] for dep in deps)
    assert "Data and pipelines are up to date" in dvc("status")
    assert Path("last.txt").read_text() == "lastleftrootrightroot"
    assert {*load_yaml(Path("dvc.lock"), ValueError)["stages"]} == {*GRAPH}
    assert run(2)[1].strip() == "tasks", "nothing is left to do"
    write_graph({**GRAPH, "more": ["last"]})
    assert run(2)[1].split("\n")[0] == "tasks more", "nor anything but what is new"


def test_one_worker_runs_one_at_a_time_and_only_what_the_targets_need(toy):
    write_graph(PAIR | {"other": []}, seconds=0.1)
    assert run(1, 1e6, 0, "left", "right")[0] == 0
    noted = runs()
    assert {*noted} == {"left", "right"} and not together(noted["left"], noted["right"])


@pytest.mark.parametrize(("memory", "both"), [(1000, False), (1300, True)])
def test_no_more_run_at_once_than_fit_into_memory_and_each_has_a_gpu_of_its_own(toy, memory, both):
    write_graph(PAIR)
    assert run(2, memory, 2)[0] == 0
    noted = runs()
    assert together(noted["left"], noted["right"]) is both
    assert not both or {noted[name]["gpu"] for name in PAIR} == {"0", "1"}


@pytest.mark.parametrize(("text", "least"), [("0", 1), ("-1", 0), ("two", 1), ("1.5", 1)])
def test_a_number_of_workers_that_is_none_is_refused_with_what_is_allowed(text, least):
    with pytest.raises(argparse.ArgumentTypeError, match=rf"'{text}' is not a whole number from {least} on"):
        count(text, least)
    assert count("3", least) == 3


def test_a_failed_stage_stops_only_what_needs_it_and_is_told_once_at_the_end(toy):
    write_graph({"broken": [], "never": ["broken"], "nor": ["never"], "alone": []}, seconds=0.1)
    code, out, error = run(2)
    assert code != 0 and {*runs()} == {"alone"}
    assert error.count("the disk is made of cheese") == 1 and "failed broken" in out
    assert error.rstrip().endswith("not started, as they need what failed: never, nor")
    assert json.loads(Path("runs.jsonl").read_text())["gpu"] == os.environ.get("CUDA_VISIBLE_DEVICES"), (
        "it has no model"
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_every_stage_and_the_next_run_goes_on(toy, how):
    write_graph(PAIR, seconds=4)
    process = start(2, 1e6, 0)
    while len(started := of_stage(toy)) < 2:
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0 and started and not of_stage(toy)
    assert not Path("runs.jsonl").exists(), "the control: none was done"
    write_graph(PAIR, seconds=0.1)
    assert run(2)[0] == 0 and {*runs()} == {*PAIR}


def of_stage(folder: Path) -> list[int]:
    """Processes of stages of this project."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"stage.py" in (place / "cmdline").read_bytes() and (place / "cwd").resolve() == folder.resolve():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pipeline_makes_the_same_bytes_side_by_side(tmp_path):
    original = make_original(tmp_path, TINY | {"tasks": ["movies", "products"], "ood": {"sets": {}, "test_max": 60}})
    serial, both = clone(original, "serial"), clone(original, "both")
    serial.repro()
    told = both.run(sys.executable, "-m", "stages.commands.parallel", "--workers", "2").text
    assert told.rstrip().endswith("finds nothing more to do") and "done mask@products-13" in told
    assert serial.lock() == both.lock()
    places = ("data/sample", "models/finetuned", "masks", "metrics", "plots")
    assert serial.files(*places) == both.files(*places) != {}
    assert both.repro().executed == []
