"""Stages side by side: in the order of the graph, no more at once than fit, and nothing left behind by a failure or a stop."""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console

from stages.commands import mend
from stages.commands.parallel import __main__ as parallel
from stages.commands.parallel import bound
from stages.commands.parallel.__main__ import count, on_this_machine, parsed, visible_gpus, workers_for
from stages.commands.parallel.clone import State, difference, state
from stages.commands.parallel.cluster import this_machine
from stages.commands.parallel.lock import RUNNER, held
from stages.commands.parallel.progress import Board, watched
from stages.commands.parallel.run_stage import DVC, Outcome
from stages.commands.parallel.schedule import longest_way_first
from stages.commands.parallel.tasks import Task
from stages.commands.plan.predicted_steps import prediction
from stages.lib.errors import ParamsError, StorageError
from stages.lib.forks import ADDRESS, waiting
from stages.lib.yaml12 import load_yaml
from tests.dvc_project import TINY, clone, lay_out_toy, make_original, wait_for
from tests.settings_files import lay_out_settings

# DVC imports what is deprecated
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
# notes when it began and ended, and on which GPU; makes `out` of its deps
STAGE = """
import json, os, sys, time
name, seconds, *deps = sys.argv[1:]
start = time.time()
time.sleep(float(seconds))
print("says", name)
if name == "broken":
    sys.exit("the disk is made of cheese")
with open(name + ".txt", "w") as file:
    file.write(name + "".join(open(dep + ".txt").read() for dep in deps))
with open("runs.jsonl", "a") as file:
    gpu, by = os.environ.get("CUDA_VISIBLE_DEVICES"), open(f"/proc/{os.getppid()}/cmdline").read()
    note = {"name": name, "start": start, "end": time.time(), "gpu": gpu, "forked": "fork_server.py" in by}
    file.write(json.dumps(note) + "\\n")
"""
GRAPH = {"root": [], "left": ["root"], "right": ["root"], "last": ["left", "right"], "alone": []}
MODEL = ["runtime.batch_tokens"]
PAIR = {"left": [], "right": []}
RUN = """
import os, sys
from types import SimpleNamespace
from stages.commands.parallel.cluster import side_by_side, this_machine
from stages.commands.parallel.run_stage import DVC, Runner
from stages.commands.parallel.tasks import find_tasks
from stages.lib.forks import fork_server, waiting

if __name__ == "__main__":
    workers, memory, gpus, *targets = sys.argv[1:]
    costs = SimpleNamespace(seconds=lambda name: None, memory=lambda name: 600.0)
    _, tasks = find_tasks(targets or ["dvc.yaml"], costs, 2)
    print("tasks", *(task.name for task in tasks))
    lent = [*map(str, range(int(gpus)))]
    with fork_server({}, DVC) as server, this_machine(int(workers), float(memory), lent) as client:
        [address] = waiting(server).values()
        code = side_by_side(tasks, client, Runner("test", {}, forks=os.environ.get("INSTEAD", address)))
    sys.exit(code)
"""


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    """A project of its own with a few stages that sleep."""
    params = "runtime: {batch_tokens: 16, processes: 2}\n"
    lay_out_toy(monkeypatch, {"stage.py": STAGE, "run.py": RUN, "params.yaml": params})
    write_graph(GRAPH)
    return project


def write_graph(graph: dict[str, list[str]], seconds: float = 2.0) -> None:
    entries = {
        name: {
            "cmd": f"exec python stage.py {name} {seconds} {' '.join(deps)}",
            "deps": ["stage.py", *(f"{dep}.txt" for dep in deps)],
            "outs": [{f"{name}.txt": {"cache": name != "last"}}],  # git keeps that one, as it does reports
            "params": {"left": MODEL, "right": MODEL, "shared": [*MODEL, "runtime.processes"]}.get(name, []),
        }
        for name, deps in graph.items()
    }
    Path("dvc.yaml").write_text(json.dumps({"stages": entries}))


def start(workers: int = 2, memory: float = 1e6, gpus: int = 0, *targets: str) -> subprocess.Popen:
    words = [sys.executable, "run.py", *map(str, (workers, memory, gpus)), *targets]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words: Any) -> tuple[int, str, str]:
    """Exit code and what was printed."""
    process = start(*words)
    out, error = process.communicate()
    return process.returncode, out, error


def runs() -> dict[str, dict]:
    """The note of each stage; every one ran once."""
    lines = [json.loads(line) for line in Path("runs.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in lines}) == len(lines)
    return {line["name"]: line for line in lines}


def together(one: dict, other: dict) -> bool:
    return one["start"] < other["end"] and other["start"] < one["end"]


def dvc(*words: str) -> str:
    return subprocess.run(["dvc", *words], capture_output=True, text=True, check=True).stdout


def test_what_needs_nothing_of_each_other_runs_at_once_and_dvc_finds_nothing_more_to_do(toy):
    code, out, _ = run(2)
    noted = runs()
    assert code == 0 and {*noted} == {*GRAPH}
    assert out.endswith("\n\nsays last\n") and out.count("says") == 1, "what the last one printed, and nothing of DVC"
    assert together(noted["left"], noted["right"])
    for name, deps in GRAPH.items():
        assert all(noted[dep]["end"] <= noted[name]["start"] for dep in deps)
    assert "Data and pipelines are up to date" in dvc("status")
    assert Path("last.txt").read_text() == "lastleftrootrightroot"
    assert {*load_yaml(Path("dvc.lock"), ValueError)["stages"]} == {*GRAPH}
    assert run(2)[1].strip() == "tasks", "nothing is left to do"
    write_graph({**GRAPH, "more": ["last"]})
    assert run(2)[1].split("\n")[0] == "tasks more", "nor anything but what is new"


@pytest.mark.parametrize(("instead", "forked"), [(None, True), ("", False), ("nowhere", False)])
def test_dvc_runs_a_stage_as_a_fork_where_something_can_fork_and_else_by_itself(toy, monkeypatch, instead, forked):
    write_graph({"left": [], "broken": []}, seconds=0.1)
    if instead is not None:
        monkeypatch.setenv("INSTEAD", instead)
    code, out, error = run(2)
    assert code != 0 and runs()["left"]["forked"] is forked
    assert "done left" in out and error.count("the disk is made of cheese") == 1
    assert "Running stage 'broken'" in error and "failed to run: exec python stage.py broken" in error


def test_one_worker_runs_one_at_a_time_and_only_what_the_targets_need(toy):
    write_graph(PAIR | {"other": []}, seconds=0.1)
    assert run(1, 1e6, 0, "left", "right")[0] == 0
    noted = runs()
    assert {*noted} == {"left", "right"} and not together(noted["left"], noted["right"])


def test_a_target_that_there_is_not_is_told_the_nearest_one(toy):
    write_graph(PAIR)
    for target, told in {"lefd": "(did you mean 'left'?)", "lef/dvc.yaml": "(did you mean 'dvc.yaml'?)"}.items():
        with pytest.raises(StorageError, match=re.escape(told)):
            predict_targets(target)
    assert predict_targets("left") == ["left"], "control"


def test_another_pipeline_that_dvc_refuses_is_told_before_anything_runs_and_not_where_nothing_does(toy):
    write_graph(PAIR, seconds=0.1)
    dvc("repro")
    Path("stages/odd").mkdir(parents=True)
    Path("stages/odd/dvc.yaml").write_text("stages: [none]\n")
    assert predict_targets("dvc.yaml") == ["left", "right"]
    write_graph(PAIR | {"more": []}, seconds=0.1)
    with pytest.raises(StorageError, match=r"stages/odd/dvc\.yaml"):
        predict_targets("dvc.yaml")
    Path("stages/odd/dvc.yaml").unlink()
    assert "more" in predict_targets("dvc.yaml"), "control"


def predict_targets(target: str) -> list[str]:
    with prediction([target]) as (steps, _):
        return [stage.name for stage in steps]


@pytest.mark.parametrize(("memory", "both"), [(1000, False), (1300, True)])
def test_no_more_run_at_once_than_fit_into_memory_and_each_has_a_gpu_of_its_own(toy, memory, both):
    write_graph(PAIR)
    assert run(2, memory, 2)[0] == 0
    noted = runs()
    assert together(noted["left"], noted["right"]) is both
    assert not both or {noted[name]["gpu"] for name in PAIR} == {"0", "1"}


@pytest.mark.parametrize(("gpus", "seen"), [(2, {"0,1", "1,0"}), (1, {"0"})])
def test_processes_that_share_a_gradient_have_a_gpu_each_or_all_that_there_are(toy, gpus, seen):
    write_graph({"left": [], "shared": []}, seconds=1.0)
    assert run(2, 1e6, gpus)[0] == 0
    noted = runs()
    assert noted["shared"]["gpu"] in seen and noted["left"]["gpu"] in ("0", "1")
    assert not together(noted["left"], noted["shared"])


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
    assert runs()["alone"]["gpu"] == os.environ.get("CUDA_VISIBLE_DEVICES"), "it has no model"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_every_stage_and_the_next_run_goes_on(toy, how):
    write_graph(PAIR, seconds=30)
    process = start()
    wait_for(lambda: len(of_stage(toy)) == 2, 60)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not of_stage(toy)
    assert not Path("runs.jsonl").exists(), "the control: none was done"
    write_graph(PAIR, seconds=0.1)
    assert run(2)[0] == 0 and {*runs()} == {*PAIR}


HOLD = """
import subprocess, sys
from stages.commands.parallel.lock import RUNNER, held

with held(RUNNER):
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    sys.stdin.read()
"""


def test_a_second_run_in_a_folder_is_refused_in_one_line_until_the_first_has_ended_or_was_killed(toy, monkeypatch):
    monkeypatch.setattr("sys.argv", ["parallel", "left"])
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        child = psutil.Process(int(first.stdout.readline()))
        with pytest.raises(StorageError, match="another run is at work in this folder, and holds .dvc/tmp/runner.lock"):
            parallel.main()
        first.kill()
    with held(RUNNER):
        assert child.is_running(), "the control: what the first one had started goes on, and holds nothing"
    child.kill()


def test_a_lock_that_cannot_be_made_tells_of_another_folder_only_outside_a_project(tmp_path):
    for lock, told in (
        (tmp_path / "no/tmp/x.lock", "; run this from the project's top folder"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(StorageError, match=f"{told}$"), held(lock):
            pass


def test_a_run_goes_on_after_a_sleep(toy, monkeypatch):
    # Dask's own are five minutes, and five seconds the least
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "1s")
    write_graph({"left": [], "right": ["left"]}, seconds=2)
    process = start(1)
    wait_for(lambda: of_stage(toy), 60)
    process.send_signal(signal.SIGSTOP)
    time.sleep(7)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0 and {*runs()} == {"left", "right"}


EXPERIMENT = """
import sys
from stages.commands.parallel import experiment

experiment.RUNNER = (sys.executable, "run.py", "2", "1e6", "0")
sys.exit(experiment.run_experiment([sys.argv[1]], sys.argv[2], [], []))
"""


@pytest.fixture
def committed(toy) -> Path:
    Path("experiment.py").write_text(EXPERIMENT)
    write_graph(PAIR, seconds=1)
    Path(".gitignore").write_text("*.txt\n*.jsonl\n/site\n")
    dvc("repro")
    Path("runs.jsonl").unlink()
    commit("first")
    return toy


def experiment(setting: str, name: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "experiment.py", setting, name], capture_output=True, text=True, check=False)


def test_an_experiment_runs_side_by_side_and_dvc_keeps_it(committed):
    done = experiment("runtime.batch_tokens=32", "larger")
    assert done.returncode == 0, done.stderr
    noted = runs()
    assert together(noted["left"], noted["right"])
    assert "Running stage" not in done.stdout, "nothing was left for DVC"
    assert "batch_tokens: 32" in Path("params.yaml").read_text() and "larger" in dvc("exp", "list")
    subprocess.run(["git", "checkout", "-q", "."], check=True)
    dvc("exp", "apply", "larger")
    assert "Data and pipelines are up to date" in dvc("status")


def test_an_experiment_of_which_a_stage_fails_is_none(committed):
    write_graph({"left": [], "broken": ["left"]}, seconds=0.1)
    done = experiment("runtime.batch_tokens=64", "failed")
    assert done.returncode != 0 and "the disk is made of cheese" in done.stderr and "a stage failed" in done.stderr
    assert "No file hash info" not in done.stderr, "a stage that is new has no outputs yet, which is no news"
    assert "failed" not in dvc("exp", "list") and {*runs()} == {"left"}


WRONG = {
    "graft.sparsty=1": "graft.sparsty: unknown setting (did you mean 'sparsity'?)",
    "graft.sparsity": "-S graft.sparsity: DVC can't set this; KEY=VALUE is wanted, as in graft.sparsity=0.0005",
    "graft.sparsity=5": "graft.sparsity: 5 is not allowed: should be less than or equal to 1",
    "graft.region=[": "-S graft.region=[: ",
    "+graft.more=1": "graft.more: unknown setting",
}


def test_wrong_settings_of_an_experiment_are_told_together_before_anything_is_changed(project, monkeypatch):
    lay_out_settings()
    text = Path("params.yaml").read_text(encoding="utf-8")
    Path(".dvc").mkdir()
    for setting, told in WRONG.items():
        monkeypatch.setattr("sys.argv", ["parallel", "-S", setting])
        with pytest.raises(ParamsError, match=re.escape(told)):
            parallel.main()
    monkeypatch.setattr("sys.argv", ["parallel", "-S", "graft.sparsty=1", "-S", "seed=[1]"])
    with pytest.raises(ParamsError, match=r"sparsity(.|\n)*did you mean 'seeds'"):
        parallel.main()
    assert Path("params.yaml").read_text(encoding="utf-8") == text


def test_a_name_is_of_an_experiment(capsys):
    assert parsed(["-S", "a.b=1", "-S", "c=2", "--name", "x"]).settings == ["a.b=1", "c=2"], "control"
    with pytest.raises(SystemExit):
        parsed(["--name", "x"])
    assert "--name is of an experiment" in capsys.readouterr().err


def of_stage(folder: Path) -> list[int]:
    """Processes of stages of this project."""
    processes = psutil.process_iter(["cmdline", "cwd"])
    of_project = (one for one in processes if one.info["cwd"] == str(folder.resolve()))
    return [one.pid for one in of_project if "stage.py" in (one.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("asked", "settings", "memory", "gpus"),
    [
        ([], {}, None, ["0", "1", "2"]),
        ([], {"gpus": 2, "memory_mib": 900}, 900, ["0", "1"]),
        (["--gpus", "1", "--memory", "700"], {"gpus": 2, "memory_mib": 900}, 700, ["0"]),
        ([], {"device": "cpu", "gpus": 2}, None, []),
    ],
)
def test_what_there_is_to_use_is_of_the_machine_unless_the_settings_or_the_command_line_say_it(
    asked, settings, memory, gpus, tmp_path, monkeypatch
):
    used = {}

    @contextmanager
    def this_machine(workers: int, memory: float, gpus: list[str]) -> Iterator[None]:
        used.update(workers=workers, memory=memory, gpus=gpus)
        yield None

    for number in range(3):
        (tmp_path / f"gpu{number}").mkdir()
    monkeypatch.setattr("stages.commands.parallel.__main__.GPUS", tmp_path)
    monkeypatch.setattr("stages.commands.parallel.cluster.this_machine", this_machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    resources = SimpleNamespace(**{"gpus": None, "memory_mib": None} | settings)
    runtime = SimpleNamespace(device=settings.get("device", "auto"), threads=1, resources=resources)
    with on_this_machine(parsed(["--workers", "2", *asked]), runtime):
        assert used["workers"] == 2 and used["gpus"] == gpus
        assert used["memory"] == memory or (memory is None and used["memory"] > 100)


@pytest.mark.parametrize("said", [None, "", "elsewhere/socket"])
def test_stages_fork_from_the_server_in_the_environment_from_none_if_it_is_empty_and_else_from_a_new_one(
    said, monkeypatch
):
    if said is None:
        monkeypatch.delenv(ADDRESS, raising=False)
    else:
        monkeypatch.setenv(ADDRESS, said)
    started = []
    monkeypatch.setattr(
        "stages.lib.forks.fork_server", lambda *given: started.append(given) or nullcontext({ADDRESS: "new"})
    )
    monkeypatch.setattr("stages.commands.parallel.cluster.this_machine", lambda *_: nullcontext())
    runtime = SimpleNamespace(device="cpu", threads=1, resources=SimpleNamespace(gpus=None, memory_mib=1))
    with on_this_machine(parsed(["--workers", "2"]), runtime, forks=True) as (_, runner):
        assert runner.environment[ADDRESS] == ("new" if said is None else said)
    assert started == [({}, DVC)] * (said != "") + [({},)] * (said is None)
    assert runner.forks == ("" if said == "" else "new.early")
    early = waiting(runner.environment)[ADDRESS]
    assert early == "" if said == "" else early.endswith(".early")


@pytest.mark.parametrize(
    ("seen", "wanted", "lent"),
    [
        ("2,3", None, ["2", "3"]), ("2,3", 1, ["2"]), ("", 4, []), (None, 2, ["0", "1"]), ("-1", None, []), ("none", 1, []),
        ("0, 1", None, ["0", "1"]), ("0,-1,1", None, ["0"]),
    ],
)  # fmt: skip
def test_only_gpus_that_the_runner_itself_may_see_are_lent(seen, wanted, lent, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen or "")
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(wanted) == lent


@pytest.mark.parametrize(("threads", "workers"), [(1, 4), (2, 2), (3, 1), (8, 1), (0, 1)])
def test_as_many_stages_at_once_as_have_the_cores(threads, workers, monkeypatch):
    monkeypatch.setattr("stages.commands.parallel.__main__.cores", lambda: 4)
    assert workers_for(threads) == workers


def test_nothing_listens_but_a_page_for_this_machine():
    with this_machine(1, 100.0, []):
        found = [one.laddr.ip for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert found and {*found} == {"127.0.0.1"}


def test_a_line_for_each_stage_that_runs_and_a_bar_over_all_where_there_is_a_terminal(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    board = Board(planned(short=(20.0, ""), long=(100.0, ""), none=(0.0, "")), at_once=2)
    assert "about 0:01:00 left" in drawn(board), "two at once"
    board.begin("short")
    board.begin("long")
    now = 1030.0
    board.end(Outcome("short"))
    shown = drawn(board)
    assert re.search(r"long +0:00:30 +of about 0:01:40", shown) and "short" not in shown
    assert "1 of 3 stages" in shown and "about 0:00:42 left" in shown, "70 s of the plan left, 50 done in 30 s"
    board.begin("short")
    assert "short" not in drawn(board), "it has ended, whatever comes late"
    quiet = Console(file=io.StringIO())
    with watched(board, quiet):
        pass
    assert quiet.file.getvalue() == ""


def planned(**stages: tuple[float, str]) -> list[Task]:
    """Tasks by name: what each takes, and which others it needs."""
    return [
        Task(name, name, (*needs.split(),), seconds, 0.0, 0, False, True) for name, (seconds, needs) in stages.items()
    ]


def test_what_leads_the_longest_way_starts_first_and_nothing_before_what_it_needs():
    tasks = planned(
        code=(0, ""), sample=(1, "code"), quick=(5, "code sample"), report=(2, "code sample quick"), joint=(60, "code sample"),
        transfer=(30, "code sample joint"), other=(0, "code"),
    )  # fmt: skip
    order = [task.name for task in longest_way_first(tasks)]
    assert order == ["code", "sample", "joint", "transfer", "quick", "report", "other"]
    places = {name: place for place, name in enumerate(order)}
    assert all(places[name] < places[task.name] for task in tasks for name in task.needs)
    unmeasured = planned(first=(0, ""), second=(0, "first"), third=(0, ""))
    assert longest_way_first(unmeasured) == unmeasured, "DVC's own order where nothing is known"


def drawn(board: Board) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with watched(board, console):
        pass
    return re.sub(r"\x1b\[[?\d;]*\w", "", console.file.getvalue())


@pytest.fixture
def clone_of_head(project, monkeypatch) -> State:
    """A clone in its first commit with a remote, and its state."""
    lay_out_toy(monkeypatch, {"params.yaml": "runtime: {threads: 1}\n", "stage.py": STAGE})
    write_config("[core]\n remote = store\n['remote \"store\"']\n url = remote\n")
    commit("first")
    return state()


def write_config(text: str) -> None:
    Path(".dvc/config").write_text(text)


def test_a_clone_that_is_as_the_head_may_work(clone_of_head):
    assert difference(clone_of_head) == ""
    write_params("# another comment\nruntime:\n  resources: {gpus: 3}\n  threads: 1\n")
    Path("dvc.lock").write_text("schema: '2.0'\n")
    assert difference(clone_of_head) == "", "what no result hangs on, and what a stage has written"


def write_params(text: str) -> None:
    Path("params.yaml").write_text(text)


OTHERWISE = {
    "runtime.threads is 2 in its params.yaml, 1 in the head's": lambda: write_params("runtime: {threads: 2}"),
    "more is 1 in its params.yaml, missing in the head's": lambda: write_params("{runtime: {threads: 1}, more: 1}"),
    "params.yaml": lambda: write_params("runtime: {"),
    "stage.py is edited and not committed": lambda: Path("stage.py").write_text("pass"),
    r"it is at commit \w{10}, the head at \w{10}": lambda: commit("second"),
    "it has neither the head's DVC remote nor its cache": lambda: write_config(""),
}


@pytest.mark.parametrize(("line", "make"), OTHERWISE.items())
def test_a_clone_that_is_otherwise_is_refused_in_one_line(clone_of_head, make, line):
    make()
    told = difference(clone_of_head)
    assert re.search(rf"^worker in \S+:{Path.cwd()} refused: .*{line}", told) and "\n" not in told


def commit(message: str) -> None:
    subprocess.run(f"git add -A && git commit -q --allow-empty -m {message}", shell=True, check=True)


def test_a_clone_without_a_remote_has_to_share_the_cache(clone_of_head, tmp_path_factory):
    shared, other = (tmp_path_factory.mktemp(name) for name in ("cache", "other"))
    write_config(f"[cache]\n dir = {shared}\n")
    head = state()
    assert head.cache == str(shared) and difference(head) == ""
    write_config(f"[cache]\n dir = {other}\n")
    assert "nor its cache" in difference(head)


def test_a_command_ends_with_the_process_that_started_it(tmp_path):
    sleeper = "subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), 'sleep', '60'])"
    script = f"import os, subprocess, sys, time; print({sleeper}.pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, bound.__file__], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: child.name() == "sleep", 60)
        parent.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    stranger = subprocess.run(
        [sys.executable, bound.__file__, "1", "echo", "ran"], capture_output=True, text=True, check=True
    )
    assert stranger.stdout == "", "control: its starter had ended before it was bound"


def test_forks_of_dvc_are_known_as_runs_of_dvc_and_end_with_the_runner(toy):
    write_graph(PAIR, seconds=30)
    process = start()
    wait_for(lambda: len(of_stage(toy)) == 2, 60)
    assert {psutil.Process(number).ppid() for number in of_stage(toy)} < {*mend._runs_of_dvc()}
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not mend._runs_of_dvc(), 10)
    assert not Path("runs.jsonl").exists()


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
