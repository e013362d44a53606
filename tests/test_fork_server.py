"""Stages as forks of one process: as if each had started by itself, and none outlives what started it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stages.commands.parallel.run_stage import FORK_SERVER

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems can't tell a process when its parent dies"),
]
# what a stage can see of how it was started
STAGE = """
import json, os, signal, sys, time
from pathlib import Path

how, *_ = sys.argv[1:]
print(json.dumps({"argv": sys.argv[1:], "orig": sys.orig_argv[1:], "folder": os.getcwd(), "name": __name__, "file": __file__,
    "environment": {name: os.environ.get(name) for name in ("DVC_STAGE", "HOME", "ODD", "EXTRA")},
    "path": sys.path[0], "handler": str(signal.getsignal(signal.SIGCHLD)), "said": sys.stdin.read()}))
print("for people", file=sys.stderr)
Path("mark").write_text(f"{os.getpid()} {'colorsys' in sys.modules}")
if how == "fail":
    sys.exit("the disk is made of cheese")
if how == "raise":
    raise ValueError("cheese")
if how == "code":
    sys.exit(7)
while how == "wait":
    time.sleep(0.05)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A project whose package starts as this one does."""
    package = tmp_path / "project" / "stages"
    package.mkdir(parents=True)
    (package / "__init__.py").write_bytes((ROOT / "stages/__init__.py").read_bytes())
    (package / "toy.py").write_text(STAGE)
    return package.parent


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """Where a fork server listens that has imported a module which no stage here imports."""
    path = tmp_path / "socket"
    with subprocess.Popen([sys.executable, "-P", str(FORK_SERVER), str(path), "colorsys"]) as server:
        wait_for(path.exists)
        yield str(path)
        server.kill()


def start(project: Path, how: str, address: str | None) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = kept | {"DVC_STAGE": "toy", "ODD": "a\nb\udcff"} | ({"STAGE_FORK_SERVER": address} if address else {})
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "stages.toy", how, "--x"], cwd=project, env=environment, **pipes)


def run(project: Path, how: str, address: str | None) -> tuple[int, bytes, bytes, bool]:
    """Exit code, what was printed, and whether a fork ran it."""
    with start(project, how, address) as process:
        out, error = process.communicate(b"from a pipe")
    return process.returncode, out, error, (project / "mark").read_text().endswith("True")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize(("how", "code"), [("work", 0), ("fail", 1), ("code", 7), ("raise", 1)])
def test_a_fork_sees_says_and_ends_as_a_process_of_its_own_does(project, address, how, code):
    *alone, forked = run(project, how, None)
    assert not forked, "the control"
    *served, forked = run(project, how, address)
    assert forked and served[:2] == alone[:2] and alone[0] == code
    assert json.loads(alone[1])["environment"]["ODD"] == "a\nb\udcff"
    # a traceback begins with the frames of who ran it
    assert served[2] == alone[2] or (how == "raise" and served[2].endswith(b"ValueError: cheese\n"))


def test_a_fork_runs_the_code_that_is_there_when_it_starts(project, address):
    assert run(project, "work", address)[0] == 0
    (project / "stages/toy.py").write_text(STAGE + "\nprint('edited')\n")
    assert run(project, "work", address)[1].endswith(b"edited\n")


def test_a_stage_runs_by_itself_where_no_server_is_or_it_ends_before_it_has_taken_it(project, tmp_path):
    assert run(project, "work", str(tmp_path / "nowhere"))[::3] == (0, False)
    path = tmp_path / "deaf"
    deaf = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); s.accept()"
    with subprocess.Popen([sys.executable, "-c", deaf]):
        wait_for(path.exists)
        assert run(project, "work", str(path))[::3] == (0, False)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fork_ends_with_its_stage(project, address, how):
    with waiting(project, address) as (stage, fork):
        stage.send_signal(how)
        assert stage.wait(10) == -how
        psutil.wait_procs([fork], timeout=10)
        assert not fork.is_running()


def test_a_stage_ends_as_its_fork_was_ended(project, address):
    with waiting(project, address) as (stage, fork):
        fork.kill()
        assert stage.wait(10) == -signal.SIGKILL


def test_forks_end_with_their_server(project, address):
    with waiting(project, address) as (stage, fork):
        fork.parent().kill()
        assert stage.wait(10) == -signal.SIGKILL
        psutil.wait_procs([fork], timeout=10)
        assert not fork.is_running() or fork.status() == psutil.STATUS_ZOMBIE


@contextmanager
def waiting(project: Path, address: str) -> Iterator[tuple[subprocess.Popen, psutil.Process]]:
    """A stage whose fork waits to be ended, and that fork."""
    mark = project / "mark"
    with start(project, "wait", address) as stage:
        stage.stdin.close()
        wait_for(lambda: mark.exists() and mark.read_text().endswith("True"))
        fork = psutil.Process(int(mark.read_text().split()[0]))
        assert fork.pid != stage.pid and fork.is_running()
        try:
            yield stage, fork
        finally:
            stage.kill()
