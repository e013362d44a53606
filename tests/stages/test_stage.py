"""What ends a stage or a command is said in one line, and a stage ends with the process that started it."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import pytest

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, ModelError, StorageError
from stages.workflow.stage import decorator as entry
from stages.workflow.stage.decorator import stage
from tests.settings_files import lay_out_settings

PROJECT = Path(__file__).resolve().parents[2]


def script(folder: Path, text: str, *arguments: str) -> subprocess.Popen:
    """Start a Python script in a folder, with the project to import from."""
    (folder / "script.py").write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT / 'stages'}"}
    command = [sys.executable, "script.py", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_users_mistake_is_one_line_and_a_programmers_mistake_keeps_its_traceback(project, capsys, monkeypatch):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr("stages.workflow.stage.settings.require_known", lambda *_: None)

    @stage
    def main(task: str, seed: int) -> None:
        """Do it."""
        if task == "mistake":
            raise StorageError(f"seed {seed + 1} is no good")
        if task == "bug":
            raise ValueError("a programmer's mistake")
        print(task, seed + 1)

    def run(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            main([*words])
        except SystemExit as left:
            code = left.code
        return code, *capsys.readouterr()

    assert run("--task", "mistake", "--seed", "4") == (2, "", "test_stage@mistake-4: seed 5 is no good\n")
    assert run("--task", "a", "--seed", "4") == (0, "a 5\n", "")
    code, _, errors = run("--task", "a")
    assert code == 2 and "--seed" in errors
    with pytest.raises(ValueError, match="a programmer's mistake"):
        run("--task", "bug", "--seed", "4")


def test_what_else_ends_a_command_is_one_line_too(capsys):
    def stop() -> None:
        raise KeyboardInterrupt

    hint = "activate the project's environment (. .venv/bin/activate; `make setup` makes it)"
    absent = f"mask@toy-1: {sys.executable} has no package torche; {hint}\n"
    for call, code, told in (
        (stop, 130, "mask@toy-1: stopped\n"),
        (lambda: import_module("torche.nn"), 2, absent),
        (Path("x" * 300).stat, 2, f"mask@toy-1: {'x' * 300}: File name too long\n"),
    ):
        with pytest.raises(SystemExit) as caught:
            guarded("mask@toy-1", call)
        assert caught.value.code == code and capsys.readouterr().err == told
    with pytest.raises(ModuleNotFoundError):  # a mistake of ours
        guarded("mask@toy-1", lambda: import_module("skill_grafting.torche"))
    with pytest.raises(FileNotFoundError):  # likewise
        guarded("mask@toy-1", Path("nowhere").stat)


def folders_error(reason: Exception) -> None:
    """A library's error, told as that of a folder."""
    try:
        raise reason
    except type(reason) as error:
        raise ModelError("models: can't be read") from error


# what Python, torch, the loader of libraries and the system say of memory that isn't there
@pytest.mark.parametrize("error", [
    MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), RuntimeError("unable to mmap 8 bytes: Cannot allocate memory (12)"),
    ImportError("libtorch.so: failed to map segment from shared object"), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
])  # fmt: skip
def test_want_of_memory_is_one_line_whatever_else_a_library_makes_of_it(error, capsys):
    def fail() -> None:
        raise error

    for call in (fail, lambda: folders_error(error)):
        with pytest.raises(SystemExit) as caught:
            guarded("mask@toy-1", call)
        told = capsys.readouterr().err
        assert caught.value.code == 2 and told.startswith(f"mask@toy-1: there is not enough memory ({type(error).__name__}") and ": )" not in told and told.count("\n") == 1
    with pytest.raises(SystemExit):
        guarded("mask@toy-1", lambda: folders_error(RuntimeError("other")))
    assert capsys.readouterr().err == "mask@toy-1: models: can't be read\n", "control"


def test_what_is_missing_is_told_with_the_command_that_makes_it(project, command):
    lay_out_settings()
    code, _, error = command("stages.movement", "--task", "movies", "--seed", "13")
    missing = "models/pretrained, models/finetuned/13/movies: not there"
    assert (code, error) == (2, f"movement@movies-13: {missing}; `dvc repro movement@movies-13` makes it\n")
    error = command("stages.study.wise", "--seed", "13")[2]
    assert error.endswith("; `dvc repro stages/study/dvc.yaml:wise@13` makes it\n")


@pytest.mark.parametrize(
    ("place", "dep", "told"), [("", "${data.root}", False), (".dvc/tmp/exps/temp/x", "${data.root}", True), (".dvc/tmp/exps/temp/x", "data/tables", False)]
)  # fmt: skip
def test_an_experiment_in_a_folder_of_its_own_names_the_option_for_what_git_does_not_have(tmp_path, monkeypatch, place, dep, told):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / place)
    with pytest.raises(DataError) as error, entry._telling_of_folders({"deps": [dep]}):
        raise DataError("data/local/mine: no such folder")
    assert str(error.value).endswith("takes along what git doesn't have by `-C PATH`") == told


FAMILY = """
    import os, subprocess, sys, time
    from stages.workflow.stage.decorator import stage

    if sys.argv[1:]:
        more = {"DVC_STAGE": "toy"} if sys.argv[1] == "bound" else {}
        subprocess.Popen([sys.executable, "script.py"], env=os.environ | more)
        time.sleep(60)

    @stage
    def main() -> None:
        print(os.getpid(), flush=True)
        time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_stage_dies_with_the_process_that_started_it(tmp_path):
    running = {}
    for kind in ("bound", "free"):
        parent = script(tmp_path, FAMILY, kind)
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + (20 if kind == "bound" else 3)
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        running[kind] = is_running(child)
        if running[kind]:
            os.kill(child, signal.SIGKILL)
        parent.stdout.close()
        parent.stderr.close()
    assert running == {"bound": False, "free": True}
