"""Stages side by side: in the order of the graph, no more at once than fit, and nothing left behind by a failure, a stop or a kill."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import psutil
import pytest
from ruamel.yaml import YAML

from stages.text.tasks.settings import get_by_path
from stages.workflow import dispatch, forks
from stages.workflow.preflight import FOLDERS
from stages.workflow.run import workers_for
from tests.dvc_project import ROOT, lay_out_toy, wait_for
from tests.settings_files import START, start_texts

# DVC imports what is deprecated
pytestmark = [pytest.mark.timeout(280), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
# notes when it began and ended, on which GPU, and whether it is a fork; makes NAME.txt of its deps
STAGE = """
import json, os, subprocess, sys, time

name, seconds, *deps = sys.argv[1:]
start = time.time()
if name == "parent":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
time.sleep(float(seconds))
print("says", name)
if name == "broken":
    sys.exit("the disk is made of cheese")
if name != "forgetful":
    with open(name + ".txt", "w") as file:
        file.write(name + "".join(open(dep + ".txt").read() for dep in deps))
with open("runs.jsonl", "a") as file:
    note = {"name": name, "start": start, "end": time.time(), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}
    file.write(json.dumps(note | {"forked": "colorsys" in sys.modules}) + "\\n")
"""
# the real one imports torch first
RUN = """
from skill_grafting.support.command import guarded
from stages.workflow import dispatch, forks, run

forks.PRELOAD = ["colorsys"]
if __name__ == "__main__":
    import json, os
    dispatch.GPUS = dispatch.Path("gpus")
    guarded("run", run.main)
"""
GRAPH = {"root": [], "left": ["root"], "right": ["root"], "last": ["left", "right"], "alone": []}
PAIR = {"left": [], "right": []}
GPU = ["runtime.device"]


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    """A project of its own with a few stages that sleep."""
    ignored = "*.txt\n*.jsonl\n/site\n__pycache__\n"
    for folder in FOLDERS:
        (project / get_by_path(START, folder)).mkdir(parents=True)
    lay_out_toy(monkeypatch, {"stage.py": STAGE, "run.py": RUN, "params.yaml": start_texts()[""], ".gitignore": ignored})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_graph(GRAPH)
    return project


def write_graph(graph: dict[str, list[str]], seconds: float = 1.5, how: str = "python stage.py") -> None:
    entries = {
        name: {
            "cmd": f"exec {how} {name} {seconds} {' '.join(deps)}",
            "deps": ["stage.py", *(f"{dep}.txt" for dep in deps)],
            "outs": [{f"{name}.txt": {"cache": name != "last"}}],  # git keeps that one, as it does reports
            "params": GPU if name in PAIR else [],
        }
        for name, deps in graph.items()
    }
    Path("dvc.yaml").write_text(json.dumps({"stages": entries}))


def start(*words: str) -> subprocess.Popen:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "run.py", *words], text=True, **streams)


def run(*words: str) -> tuple[int, str, str]:
    """Exit code and what was printed."""
    process = start(*words)
    out, error = process.communicate()
    return process.returncode, out, error


@pytest.fixture
def here(toy, command, monkeypatch):
    """here(*words): the same in this process, where no stage is a fork and none is to be killed."""
    monkeypatch.setattr(dispatch, "GPUS", Path("gpus"))
    monkeypatch.setattr(dispatch, "_free_gpus", queue.SimpleQueue())
    return partial(command, "stages.workflow.run")


def ended(process: subprocess.Popen) -> int:
    """Exit code, once it has ended."""
    process.communicate(timeout=60)
    return process.returncode


def runs() -> dict[str, dict]:
    """The note of each stage; every one ran once."""
    lines = [json.loads(line) for line in Path("runs.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in lines}) == len(lines)
    return {line["name"]: line for line in lines}


def together(one: dict, other: dict) -> bool:
    return one["start"] < other["end"] and other["start"] < one["end"]


def said_by_dvc(*words: str) -> str:
    return subprocess.run(["dvc", *words], capture_output=True, text=True, check=True).stdout


def test_what_needs_nothing_of_each_other_runs_at_once_and_dvc_finds_nothing_more_to_do(toy, here):
    code, out, error = here("--workers", "2")
    noted = runs()
    assert code == 0 and {*noted} == {*GRAPH}, error
    assert re.findall("^says (.*)$", out, re.MULTILINE) == re.findall("^done ([a-z]+)", out, re.MULTILINE), "what each stage printed"
    assert together(noted["left"], noted["right"])
    for name, deps in GRAPH.items():
        assert all(noted[dep]["end"] <= noted[name]["start"] for dep in deps)
    assert "Data and pipelines are up to date" in said_by_dvc("status")
    assert "Running" not in said_by_dvc("repro") and Path("last.txt").read_text() == "lastleftrootrightroot"
    assert here()[1] == "Nothing to run: 5 stages are up to date.\n"
    Path("left.txt").unlink()
    Path("dvc.lock").unlink()
    assert here("left")[0] == 0 and Path("left.txt").read_text() == "leftroot", "back from the run cache"
    assert {*runs()} == {*GRAPH}, "the control: nothing ran anew"


@pytest.mark.parametrize(("how", "forked"), [("python -m stage", True), ("python stage.py", False)])
def test_a_stage_is_a_fork_and_any_other_command_a_process_of_its_own(toy, here, how, forked):
    write_graph({"left": [], "broken": []}, 0.1, how)
    code, out, error = (run if forked else here)("--workers", "2")
    assert code == 1 and runs()["left"]["forked"] is forked
    assert "done left" in out and error.count("the disk is made of cheese") == 1


def test_what_killed_runs_left_beside_outputs_goes_with_the_next_run(toy, here):
    left, others = Path("left.txt.ab12_x9z.partial"), [Path("other.txt.ab12_x9z.partial"), Path("left.txt.partial")]
    for folder in (left, *others):
        (folder / "new").mkdir(parents=True)
    write_graph({"left": []}, 0.1)
    assert here()[0] == 0 and not left.exists() and all(folder.is_dir() for folder in others)


def test_a_dead_server_of_forks_is_started_anew_or_done_without(tmp_path, monkeypatch):
    def outcome() -> tuple[int, str]:
        printed = tmp_path / "printed"
        printed.write_text("")
        _, wait = forks.start("exec python -m this", str(tmp_path), {}, str(printed), may_fork=True)
        while (code := wait(1)) is None:
            pass
        return code, printed.read_text()

    monkeypatch.setattr(forks, "PRELOAD", [])
    assert outcome()[0] == 0 and "Namespaces" in outcome()[1]
    server = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    wait_for(lambda: psutil.Process(server._forkserver_pid).status() == psutil.STATUS_ZOMBIE)
    assert outcome()[0] == 0
    died = []

    def dies(*_: object) -> None:
        died.append(1)
        raise EOFError

    monkeypatch.setattr(forkserver, "connect_to_new_process", dies)  # what a new process asks
    assert outcome() == (0, outcome()[1]) and "Namespaces" in outcome()[1] and died


def test_a_failed_stage_stops_only_what_needs_it_and_is_told_once_at_the_end(toy, here):
    write_graph({"broken": [], "never": ["broken"], "nor": ["never"], "alone": [], "forgetful": []}, seconds=0.1)
    code, out, error = here("--workers", "2")
    assert code == 1 and {*runs()} == {"alone", "forgetful"}
    assert error.count("the disk is made of cheese") == 1 and "failed broken" in out
    assert "output 'forgetful.txt' does not exist" in error
    assert error.rstrip().endswith("not started, since they depend on failed stages: never, nor")
    assert "alone" in YAML(typ="safe").load(Path("dvc.lock"))["stages"], "what was done is recorded"


def test_a_target_that_there_is_not_is_told_the_nearest_one_and_one_runs_only_what_it_needs(toy, here):
    for target, told in {"lefd": "(did you mean 'left'?)", "lef/dvc.yaml": "(did you mean 'dvc.yaml'?)"}.items():
        code, _, error = here(target)
        assert code == 2 and error.startswith("run: ") and told in error and error.count("\n") == 1
    write_graph(GRAPH, seconds=0.1)
    assert here("left")[0] == 0 and {*runs()} == {"root", "left"}




# --- What there is to use ------------------------------------------------------------------------------------------


def set_resources(**resources: Any) -> None:
    params = YAML().load(Path("params.yaml"))
    params["runtime"]["resources"] |= resources
    YAML().dump(params, Path("params.yaml"))


@pytest.mark.parametrize("gpus", [2, 1])
def test_each_stage_with_a_model_has_a_gpu(toy, here, gpus):
    for number in range(gpus):
        Path(f"gpus/{number}").mkdir(parents=True)
    write_graph(PAIR | {"other": []})
    assert here("--workers", "3")[0] == 0
    noted = runs()
    assert together(noted["left"], noted["right"]) is (gpus == 2) and noted["other"]["gpu"] is None
    assert {noted[name]["gpu"] for name in PAIR} == {*map(str, range(gpus))}


def test_no_more_run_at_once_than_fit_into_memory_by_what_each_took_the_last_time(toy, here):
    write_graph(PAIR | {"other": []})
    Path(".dvc/tmp").mkdir(exist_ok=True)
    lines = [json.dumps({"stage": name, "seconds": 1.0, "mib": 600}) for name in (*PAIR, "other")]
    Path(".dvc/tmp/durations.jsonl").write_text("\n".join(lines) + "\n")
    set_resources(memory_mib=1300)
    assert here("--workers", "3")[0] == 0
    noted = runs().values()
    assert max(sum(one["start"] <= note["start"] < one["end"] for one in noted) for note in noted) == 2


@pytest.mark.parametrize(
    ("seen", "wanted", "share", "lent"),
    [("2,3", None, 1, ["2", "3"]), ("2,3", 1, 1, ["2"]), ("", 4, 1, []), (None, 2, 1, ["0", "1"]), ("-1", None, 1, []),
     ("0, 1", None, 1, ["0", "1"]), ("0,-1,1", None, 1, ["0"]), ("2,3", None, 2, ["2", "3", "2", "3"])],
)  # fmt: skip
def test_only_gpus_that_the_runner_itself_may_see_are_lent(seen, wanted, share, lent, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen or "")
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name in "012":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(dispatch, "GPUS", tmp_path)
    runtime = SimpleNamespace(device="auto", resources=SimpleNamespace(gpus=wanted, stages_per_gpu=share))
    assert dispatch.gpus_of(runtime) == lent
    runtime.device = "cpu"
    assert dispatch.gpus_of(runtime) == []


@pytest.mark.parametrize(("threads", "workers"), [(1, 4), (2, 2), (3, 1), (8, 1), (0, 1)])
def test_as_many_stages_at_once_as_have_the_cores(threads, workers, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert workers_for(SimpleNamespace(threads=threads)) == workers


def test_nothing_listens_but_a_page_for_this_machine():
    with dispatch.this_machine(1, 100.0, []):
        found = [one.laddr.ip for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert {*found} <= {"127.0.0.1"}


# --- Stops and kills -------------------------------------------------------------------------------------------------

CHILD_OF_STAGE = "time.sleep(100)"


def working(folder: Path, *words: str) -> subprocess.Popen:
    """A run, once a stage of it has a child."""
    process = start("--workers", "2", *words)
    wait_for(lambda: has_process(folder, CHILD_OF_STAGE), 120)
    time.sleep(1.5)
    return process


def has_process(folder: Path, words: str = "") -> bool:
    """Is there another process than this one, with these words in its command, that stands in this project's folder?"""
    for one in psutil.process_iter(["cwd", "cmdline", "status"]):
        mine = one.info["cwd"] == str(folder.resolve()) and one.pid != os.getpid()
        if mine and one.info["status"] != psutil.STATUS_ZOMBIE and words in " ".join(one.info["cmdline"] or ()):
            return True
    return False


@pytest.mark.parametrize(("stop", "how"), [(signal.SIGINT, "python -m stage"), (signal.SIGTERM, "python stage.py")])
def test_a_stop_ends_every_child_and_the_next_run_goes_on(toy, stop, how):
    write_graph({"parent": [], "right": []}, 60, how)
    process = working(toy)
    process.send_signal(stop)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error.rstrip().endswith("run: stopped")
    wait_for(lambda: not has_process(toy), 20)
    assert not Path("runs.jsonl").exists(), "the control: none was done"
    write_graph(PAIR, 0.1, how)
    assert run("--workers", "2")[0] == 0 and {*runs()} == {*PAIR}


MANY = """
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import popen_forkserver
from stages.workflow import forks

forks.PRELOAD = ["colorsys"]
alone, poll = [], popen_forkserver.Popen.poll

def noted(*arguments):
    alone.append(forks.ONE_AT_A_TIME.locked())
    return poll(*arguments)

def code_of(_):
    _, wait = forks.start("exec python -m quick", ".", {}, "printed", True)
    while (code := wait(0.1)) is None:
        pass
    return code

popen_forkserver.Popen.poll = noted
if __name__ == "__main__":
    with ThreadPoolExecutor(8) as pool:
        print({*pool.map(code_of, range(60))}, len(alone) >= 60 and all(alone))
"""


def test_no_two_threads_ask_for_an_exit_code_at_once(tmp_path):
    """One of them would read nothing, and take a stage that has ended well for one that failed with 255."""
    for name, text in {"many.py": MANY, "quick.py": "", "printed": ""}.items():
        (tmp_path / name).write_text(text)
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "many.py"]
    ended = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout == "{0} True\n"


def test_forks_end_with_a_runner_that_was_killed_and_what_was_done_before_comes_back_from_the_run_cache(toy):
    write_graph({"left": [], "parent": ["left"]}, 2, "python -m stage")
    process = working(toy)
    process.kill()
    process.communicate(timeout=60)
    assert not Path("dvc.lock").exists(), "the control: it is written once a minute"
    wait_for(lambda: not has_process(toy), 20)
    assert {*runs()} == {"left"}, "the control: it was killed in the middle of the second stage"
    Path("runs.jsonl").unlink()
    assert run()[0] == 0 and {*runs()} == {"parent"}
    assert "Running" not in said_by_dvc("repro")


def test_a_second_run_in_a_folder_is_refused_in_one_line_and_leaves_the_first_alone(toy, here):
    write_graph({"parent": []}, 100)
    first, before = working(toy), Path("params.yaml").read_bytes()
    code, _, error = here("-S", "seeds=[7]")
    assert (code, error) == (2, "run: DVC or another run is at work in this folder: wait until it has ended\n")
    assert first.poll() is None and has_process(toy, CHILD_OF_STAGE) and Path("params.yaml").read_bytes() == before
    first.send_signal(signal.SIGINT)
    assert ended(first) == 130


def test_a_dvc_lock_that_a_kill_cut_short_is_set_aside_and_nothing_runs_anew(toy, here):
    write_graph({"left": [], "right": ["left"]}, 0.1)
    said_by_dvc("repro")
    before = Path("dvc.lock").read_text()
    Path(".dvc/tmp/rwlock").write_text('{"write": {"/a/b": {"pi')
    code, _, error = here()
    assert code == 0 and ".dvc/tmp/rwlock can't be read" in error, "DVC's note of what runs"
    for content in ("", "stages:\n  left:\n    cmd: exec py", "schema: '2.0'\nstages: 1\n"):
        Path("dvc.lock").write_text(content)
        code, _, error = here()
        assert code == 0 and re.fullmatch(r"dvc\.lock can't be read, .* dvc\.lock\.torn; .*run cache\n", error)
        assert Path("dvc.lock").read_text() == before and Path("dvc.lock.torn").read_text() == content
    assert {*runs()} == {"left", "right"}, "once each"
    Path("dvc.yaml").write_text("stages: 1\n")
    code, _, error = here()
    assert code == 2 and "dvc.yaml" in error and Path("dvc.yaml").exists(), "the control: another mistake is told"




# --- Experiments -----------------------------------------------------------------------------------------------------


def commit() -> None:
    subprocess.run("git add -A && git commit -qm state", shell=True, check=True)


def test_an_experiment_runs_side_by_side_and_dvc_keeps_it_unless_a_stage_fails(toy, here):
    write_graph(PAIR)
    assert here()[0] == 0
    Path("runs.jsonl").unlink()
    commit()
    code, out, error = here("-S", "runtime.device=cpu", "--name", "onecpu")
    assert code == 0 and "kept as an experiment: " in out, error
    assert together(*runs().values()) and "device: cpu" in Path("params.yaml").read_text()
    assert "onecpu" in said_by_dvc("exp", "list")
    for name, told in (("onecpu", "there is an experiment onecpu; take another"), ("a..b", "Invalid exp name a..b")):
        code, _, error = here("-S", "runtime.device=auto", "--name", name)
        assert code == 2 and told in error and "device: cpu" in Path("params.yaml").read_text()
    code, _, error = here("-S", "+localizer.grown.rounds=0")
    assert code == 2 and "localizer.grown.rounds: 0 is not allowed" in error
    code, _, error = here("-S", "runtime.device=gpu")
    assert code == 2 and "runtime.device: 'gpu' is not allowed" in error and "cpu" in Path("params.yaml").read_text()
    subprocess.run(["git", "checkout", "-q", "."], check=True)
    said_by_dvc("exp", "apply", "onecpu")
    assert "Data and pipelines are up to date" in said_by_dvc("status")
    write_graph(PAIR | {"broken": []}, 0.1)
    before = Path("params.yaml").read_bytes()
    code, _, error = here("-S", "runtime.device=auto", "--name", "failed")
    assert code == 1 and Path("params.yaml").read_bytes() == before, "settings are put back"
    assert "params.yaml: put back as before this experiment; the same command continues where it ended" in error
    assert "failed" not in said_by_dvc("exp", "list")


# --- A cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(toy) -> Any:
    """A scheduler, its address, and a function that starts a worker in a folder."""
    started, place = [], ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]

    def dask(*words: str, folder: Path = toy) -> subprocess.Popen:
        silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        started.append(subprocess.Popen(["dask", *words], cwd=folder, env=environment | more, **silent))
        return started[-1]

    more = {"PYTHONPATH": str(ROOT)}  # where a checkout's folder has it all
    dask("scheduler", *place, "--scheduler-file", ".dvc/tmp/scheduler.json")
    file = wait_for(lambda: (found := toy / ".dvc/tmp/scheduler.json").is_file() and found, 60)
    address = wait_for(lambda: file.read_text() and json.loads(file.read_text())["address"], 10)

    def worker(folder: Path = toy) -> subprocess.Popen:
        offer = ["--nthreads", "1", "--resources", "MEMORY=1000", "--dashboard-address", "127.0.0.1:0"]
        return dask("worker", address, *offer, folder=folder)

    yield address, worker
    for process in started:
        with suppress(psutil.NoSuchProcess):  # one that a test has killed
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait(60)


def test_a_stop_leaves_the_workers_and_one_that_is_killed_costs_nothing(toy, cluster, tmp_path_factory):
    address, worker = cluster
    write_graph({"parent": [], "right": []}, 60)
    first, second = worker(), worker()
    process = working(toy, "--scheduler", address)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 130
    wait_for(lambda: not has_process(toy, CHILD_OF_STAGE), 20)
    assert first.poll() is second.poll() is None and not Path("runs.jsonl").exists()
    names = [f"stage{number}" for number in range(6)]
    write_graph({name: [] for name in names}, 1)
    process = start("--scheduler", address, "--workers", "2")
    wait_for(lambda: Path("runs.jsonl").exists(), 120)
    # all at once, as when a machine goes: the nanny, and the worker that it would start again
    for one in [*psutil.Process(first.pid).children(), psutil.Process(first.pid)]:
        one.kill()
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert sorted(re.findall(r"done (\w+)", out)) == names
    assert "Running" not in said_by_dvc("repro")

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    worker(elsewhere)
    Path("dvc.lock").unlink()
    write_graph({"another": []}, 0.1)
    code, _, error = run("--scheduler", address, "--workers", "2")
    assert code == 2 and f"stands in {elsewhere}: start it in the folder of this run" in error


def test_an_address_where_nobody_is_is_one_line(here):
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        code, _, error = here("--scheduler", "tcp://127.0.0.1:9", "--workers", "1")
    said = "run: no scheduler of Dask answers at tcp://127.0.0.1:9"
    assert code == 2 and error.startswith(said) and error.count("\n") == 1
