"""Stages as forks of one process: as if each had started by itself, and none outlives what started it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stages.lib import forks
from tests.dvc_project import ROOT, of_tests, wait_for

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems can't tell a process when its parent dies"),
]
# what a stage can see of how it was started
STAGE = """
import json, os, signal, sys, time
from pathlib import Path

how, *_ = sys.argv[1:]
sys.stdout.reconfigure(errors="replace")
print(json.dumps({"argv": sys.argv[1:], "orig": sys.orig_argv[1:], "folder": os.getcwd(), "name": __name__, "file": __file__,
    "environment": {name: os.environ.get(name) for name in ("DVC_STAGE", "HOME", "ODD", "EXTRA")},
    "path": sys.path[0], "umask": os.umask(0),
    "streams": [[file.seekable(), file.isatty(), file.encoding, file.errors, file.line_buffering, file.fileno()]
        for file in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__)], "handler": str(signal.getsignal(signal.SIGCHLD)), "said": sys.stdin.read()}))
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
    (package / "lib").mkdir(parents=True)
    for name in ("__init__.py", "lib/__init__.py", "lib/forks.py", "lib/fork_server.py"):
        (package / name).write_bytes((ROOT / "stages" / name).read_bytes())
    (package / "toy.py").write_text(STAGE)
    return package.parent


@contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """A process that is killed in the end, also if a test fails before: Popen alone would wait for it for ever."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """Where a fork server listens that has imported a module which no stage here imports."""
    path = tmp_path / "socket"
    words = [sys.executable, "-P", str(forks.SERVER), str(path), str(os.getpid()), "colorsys"]
    with ended(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)):
        wait_for(path.exists)
        yield str(path)


def start(project: Path, how: str, address: str) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = kept | {"DVC_STAGE": "toy", "ODD": "a\nb\udcff", forks.ADDRESS: address}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "stages.toy", how, "--x"], cwd=project, env=environment, **pipes)


def run(project: Path, how: str, address: str) -> tuple[int, bytes, bytes, bool]:
    """Exit code, what was printed, and whether a fork ran it."""
    with start(project, how, address) as process:
        out, error = process.communicate(b"from a pipe")
    return process.returncode, out, error, (project / "mark").read_text().endswith("True")


@pytest.mark.parametrize(("how", "code"), [("work", 0), ("fail", 1), ("code", 7), ("raise", 1)])
def test_a_fork_sees_says_and_ends_as_a_process_of_its_own_does(project, address, how, code):
    *alone, forked = run(project, how, "")
    assert not forked, "the control"
    *served, forked = run(project, how, address)
    assert forked and served[:2] == alone[:2] and alone[0] == code
    assert json.loads(alone[1])["environment"]["ODD"] == "a\nb\udcff"
    # a traceback begins with the frames of who ran it
    assert served[2] == alone[2] or (how == "raise" and served[2].endswith(b"ValueError: cheese\n"))


def test_nobody_else_can_have_a_server_run_anything(address):
    assert Path(address).stat().st_mode & 0o077 == 0


def test_a_fork_runs_the_code_that_is_there_when_it_starts(project, address):
    assert run(project, "work", address)[0] == 0
    (project / "stages/toy.py").write_text(STAGE + "\nprint('edited')\n")
    assert run(project, "work", address)[1].endswith(b"edited\n")


def test_a_stage_runs_by_itself_where_no_server_is_or_it_ends_before_it_has_taken_it(project, tmp_path):
    assert run(project, "work", str(tmp_path / "nowhere"))[::3] == (0, False)
    path = tmp_path / "deaf"
    deaf = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); s.accept()"
    with ended(subprocess.Popen([sys.executable, "-c", deaf])):
        wait_for(path.exists)
        assert run(project, "work", str(path))[::3] == (0, False)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)])
def test_a_fork_ends_with_its_stage(project, address, how, code):
    with waiting(project, address) as (stage, fork):
        stage.send_signal(how)
        assert stage.wait(10) == code and (code < 0 or stage.stderr.read().endswith(b"toy: stopped\n"))
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


SEVERAL = """
stages:
  toy:
    foreach: {numbers}
    do:
      cmd: python -m stages.toy work ${{item}} && cp mark mark-${{item}}
      outs:
      - mark-${{item}}
"""


def test_under_dvc_the_third_stage_starts_a_server_for_those_after_it_which_ends_with_dvc(project):
    file = project / "stages/lib/forks.py"
    text = file.read_text()
    file.write_text(text[: text.index("IMPORTS = (")] + 'IMPORTS = ("colorsys",)\n' + text[text.index("ENOUGH = ") :])
    (project / "stages/toy.py").write_text(STAGE.replace("sys.stdin.read()", "''") + "\ntime.sleep(0.3)\n")
    own = os.environ | of_tests(project)
    environment = {name: value for name, value in own.items() if name not in (forks.ADDRESS, "PYTHONPATH")}

    def dvc(*words: str) -> None:
        subprocess.run(["dvc", *words], cwd=project, env=environment, check=True, capture_output=True)

    def forked(numbers: range) -> list[bool]:
        return [(project / f"mark-{number}").read_text().endswith("True") for number in numbers]

    dvc("init", "-q", "--no-scm")
    (project / "dvc.yaml").write_text(SEVERAL.format(numbers=[1, 2]))
    dvc("repro")
    assert not any(forked(range(1, 3))) and not [*project.glob(".dvc/tmp/forks/*.socket")], "two are not worth it"
    (project / "dvc.yaml").write_text(SEVERAL.format(numbers=[*range(1, 8)]))
    dvc("repro")
    assert sum(forked(range(1, 8))) >= 2
    wait_for(lambda: not [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(project)])
    assert not [*project.glob(".dvc/tmp/forks/*.socket")]


def test_a_stage_waits_for_a_server_that_still_imports_and_one_that_need_not_runs_by_itself(project, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nwhile not Path(__file__).with_suffix('').exists(): time.sleep(0.02)\n"
    )
    address = tmp_path / "address"
    words = [sys.executable, "-P", str(forks.SERVER), str(address), str(os.getpid()), "colorsys", "slow"]
    early = forks.waiting({forks.ADDRESS: str(address)})[forks.ADDRESS]
    with ended(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(tmp_path)}, stdin=subprocess.DEVNULL)):
        wait_for(Path(early).exists)
        assert run(project, "work", str(address))[::3] == (0, False), "nothing listens there yet"
        with ended(start(project, "work", early)) as stage:
            time.sleep(0.5)
            assert stage.poll() is None
            (tmp_path / "slow").touch()
            stage.communicate(b"")
        assert (stage.returncode, (project / "mark").read_text().split()[1]) == (0, "True")
        assert run(project, "work", str(address))[::3] == run(project, "work", early)[::3] == (0, True)


def threads_of(server: subprocess.Popen, address: Path) -> int:
    wait_for(address.exists)
    return psutil.Process(server.pid).num_threads()


@pytest.mark.timeout(300)
def test_a_server_that_has_imported_all_libraries_has_no_thread_beside_the_one_that_forks(tmp_path, monkeypatch):
    """A lock that a thread holds while its process is forked stays shut in the fork."""
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # its threads end before a fork, by themselves
    counts = []
    for number, kept in enumerate((forks.NO_THREADS, {})):
        monkeypatch.setattr(forks, "NO_THREADS", kept)
        address = tmp_path / str(number)
        with ended(forks.start_server(str(address), os.getpid(), alone)) as server:
            counts.append(threads_of(server, address))
    assert counts[0] == 1 < counts[1], "the second is the control"
