"""A run of DVC that is killed leaves no stage running, and nothing damaged that the next command doesn't mend."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.exceptions import DvcException
from dvc.repo import Repo

from stages.commands import mend
from stages.commands.mend import NOTES, mending
from stages.commands.parallel.run_stage import ALONE
from stages.lib.errors import StorageError
from tests.dvc_project import ROOT, dvc, lay_out_toy, wait_for

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC imports
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
STAGE = """
import os, stages
with open("out", "w") as file:
    file.write("made")
"""
# as a stage starts, with the signal that DVC gets just then
START = "#!/bin/bash\n[ -z $KILL ] || kill -$KILL $PPID\nsleep 0.2\nexec python script.py\n"
ENTRY = "stages: {toy: {cmd: exec bash start.sh, deps: [start.sh], outs: [out]}}\n"
IMPORTS = """
import ctypes, os, runpy, sys

def look(event, details):
    if event == "import" and details[0].startswith("stages."):
        asked_for = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(asked_for))
        print(details[0], asked_for.value, flush=True)
        os._exit(0)

sys.addaudithook(look)
runpy.run_module("stages.fetch")
"""


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    files = {"script.py": STAGE, "start.sh": START, "dvc.yaml": ENTRY, "params.yaml": "{}\n"}
    return lay_out_toy(monkeypatch, files)


@linux
@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_stage_whose_dvc_died_before_its_first_line_ends_at_once(toy, name):
    killed = subprocess.run(["dvc", "repro"], env=os.environ | {"KILL": name}, capture_output=True, text=True)
    # its output stays open until the stage has ended, too
    assert killed.returncode == -signal.Signals[f"SIG{name}"]
    assert "toy: stopped, since the run of DVC that started it has ended" in killed.stderr
    assert not Path("out").exists()
    assert dvc(["repro"]) == 0 and Path("out").read_text() == "made"


@linux
def test_a_stage_asks_for_the_death_signal_before_it_imports_anything_of_the_project():
    environment = {key: value for key, value in os.environ.items() if key != "DVC_STAGE"}
    command = [sys.executable, "-c", IMPORTS]
    where = {"cwd": ROOT, "capture_output": True, "text": True}
    told = [subprocess.run(command, env=environment | more, **where).stdout for more in ({"DVC_STAGE": "fetch"}, {})]
    of_dvc, by_hand = map(str.split, told)
    assert of_dvc[0] == by_hand[0] and (of_dvc[1], by_hand[1]) == (str(int(signal.SIGTERM)), "0")


@linux
@pytest.mark.parametrize(
    ("notes", "goes_on"),
    [
        ('{"write": {"out": {"pid": 4000001, "cmd": "dvc repro"}}}', False),
        ('{"write": {"out": {"pid": OURS, "cmd": "dvc repro"}}}', True),
        ("{}", True),
        ('{"write": {"out', True),
        ("[]", True),
    ],
)
def test_a_stage_goes_on_unless_the_dvc_that_runs_here_is_not_above_it(project, notes, goes_on):
    NOTES.parent.mkdir(parents=True)
    NOTES.write_text(notes.replace("OURS", str(os.getpid())))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_STAGE": "toy"}
    assert (subprocess.run([sys.executable, "-c", STAGE], env=environment).returncode == 0) == goes_on
    assert Path("out").exists() == goes_on


# --- Damaged files -----------------------------------------------------------------------------------------------


@mending
def look() -> list[str]:
    """The first part of a plan."""
    try:
        with Repo() as repo:
            return [stage.name for stage in repo.index.stages]
    except DvcException as problem:
        raise StorageError(str(problem)) from None


@pytest.mark.parametrize("committed", [True, False])
def test_a_damaged_lock_file_is_restored_or_removed_and_the_next_run_finds_all_done(toy, capfd, caplog, committed):
    dvc(["repro"])
    assert "Running stage 'toy':" in caplog.messages
    if committed:
        subprocess.run("git add dvc.lock && git commit -qm state", shell=True, check=True)
    before = Path("dvc.lock").read_text()
    for content in ("", "stages:\n  toy:\n    cmd: exec ba", "<<<<<<< HEAD\n", "schema: '2.0'\nstages: 1\n"):
        Path("dvc.lock").write_text(content)
        assert dvc(["repro"]) != 0
        capfd.readouterr()
        look()
        [line] = capfd.readouterr().err.splitlines()
        assert line.startswith("dvc.lock was damaged by a run that was killed, and is ")
        assert ("last commit" in line) == committed == Path("dvc.lock").exists()
        caplog.clear()
        assert dvc(["repro"]) == 0 and "Running stage 'toy':" not in caplog.messages
        assert Path("dvc.lock").read_text() == before


def test_what_is_in_order_is_left_alone_and_another_mistake_is_told(toy, capsys):
    dvc(["repro"])
    known = [stamp(path) for path in (Path("dvc.lock"), NOTES)]
    capsys.readouterr()
    look()
    assert [stamp(path) for path in (Path("dvc.lock"), NOTES)] == known
    assert capsys.readouterr().err == ""
    Path("dvc.yaml").write_text("stages: 1\n")
    with pytest.raises(StorageError, match=r"dvc\.yaml"):
        look()
    assert stamp(Path("dvc.lock")) == known[0]


def stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def test_unreadable_notes_of_dvc_are_removed(toy, capfd, caplog):
    dvc(["repro"])
    for content in ("", '{"write": {"/a/b": {"pi', "[]", "\xff"):
        NOTES.write_text(content, encoding="latin-1")
        Path("out").unlink()
        assert dvc(["repro"]) != 0
        capfd.readouterr()
        look()
        assert capfd.readouterr().err.startswith(f"{NOTES} was damaged by a run that was killed, and is removed")
        caplog.clear()
        assert dvc(["repro"]) == 0 and Path("out").exists() and "Running stage 'toy':" not in caplog.messages


@pytest.mark.parametrize("command", [("dvc", "repro"), (*ALONE, "toy")])
def test_unreadable_notes_stay_while_a_run_of_dvc_is_alive(toy, command):
    Path("start.sh").write_text("touch begun\nsleep 60\ntouch out\n")
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as running:
        wait_for(Path("begun").exists)  # from then on DVC waits for it and touches no note
        NOTES.write_text("")
        with pytest.raises(StorageError, match=rf"DVC still runs here \(process {running.pid}\): wait for its end"):
            look()
        os.killpg(running.pid, signal.SIGKILL)
    look()
    assert not NOTES.exists()


@pytest.mark.parametrize("busy", ["_runs_of_dvc", "stages_at_work"])
def test_what_killed_stages_left_half_written_goes_once_nothing_is_at_work(project, monkeypatch, capsys, busy):
    left = [Path("masks/learned/13/movies.safetensors.partial"), Path("models/finetuned/13/movies.partial/config.json")]
    left += [Path("dvc.lock.partial"), Path("stages/study/dvc.lock.partial")]
    kept = [Path("models/local/mine.partial"), Path("masks/learned/13/movies.safetensors")]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with monkeypatch.context() as at_work:
        at_work.setattr(mend, busy, lambda *_: [1])
        mend.remove_partials()
    assert all(path.exists() for path in left), "the control"
    mend.remove_partials()
    assert not any(path.exists() for path in (*left, left[1].parent)) and all(path.exists() for path in kept)
    assert "removed 4 half-written" in capsys.readouterr().err
