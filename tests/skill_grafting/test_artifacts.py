"""Files under their final names are complete; errors are said in one line; nobody is left running."""

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from skill_grafting import digest
from skill_grafting.command import guarded
from skill_grafting.errors import DataError, ModelError, StorageError
from skill_grafting.io import read_json, read_rows, replacing, require, write_json, write_rows, write_text
from stages.workflow.core.stage import stage

PROJECT = Path(__file__).resolve().parents[2]


def script(folder: Path, text: str, *arguments: str) -> subprocess.Popen:
    """Start a Python script in a folder, with the project to import from."""
    (folder / "script.py").write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "script.py", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finished(process: subprocess.Popen) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


@pytest.mark.parametrize(
    ("content", "told"),
    [("[" * 100_000, "nested too deeply"), ("9" * 5000, "a number of too many digits"), ("[1,", "Expecting value")],
)
def test_json_that_can_not_be_read_is_one_line(tmp_path, content, told):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=rf"x\.json: not valid JSON: {told}"):
        read_json(tmp_path / "x.json")
    with pytest.raises(DataError, match=rf"x\.json: damaged: {told}"):
        read_rows(tmp_path / "x.json")


def test_a_file_and_a_folder_are_replaced_as_a_whole(tmp_path):
    for content in ("one", "two"):
        write_text(tmp_path / "deep" / "file", content)
        with replacing(tmp_path / "folder") as partial:
            partial.mkdir()
            (partial / content).write_text(content)
    assert (tmp_path / "deep" / "file").read_text() == "two"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["two"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "folder"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the path of an open file")
def test_all_that_was_written_is_on_the_disk_before_it_gets_its_final_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda place: synced.append(Path(f"/proc/self/fd/{place}").readlink().name))
    write_text(tmp_path / "file", "one")
    assert synced == ["file.partial"]
    with replacing(tmp_path / "folder") as partial:
        partial.mkdir()
        (partial / "x").write_text("two")
    assert synced == ["file.partial", "x", "folder.partial"]


def only_old_is_left(folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == ["target"] and (folder / "target").read_text() == "old"


@pytest.mark.parametrize("as_folder", [False, True])
def test_an_exception_leaves_the_old_content_and_no_partial(tmp_path, as_folder):
    (tmp_path / "target.partial").mkdir()
    (tmp_path / "target.partial" / "rest").write_text("rest")
    write_text(tmp_path / "target", "old")
    assert only_old_is_left(tmp_path), "a leftover partial is replaced"
    with pytest.raises(KeyError), replacing(tmp_path / "target") as partial:
        if as_folder:
            partial.mkdir()
        (partial / "x" if as_folder else partial).write_text("new")
        raise KeyError("x")
    assert only_old_is_left(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO])
def test_a_place_that_cannot_be_written_names_the_file(tmp_path, code):
    write_text(tmp_path / "target", "old")
    words = f"target: could not be written.*{os.strerror(code)}; nothing was left behind; fix this and run again$"
    with pytest.raises(StorageError, match=words), replacing(tmp_path / "target") as partial:
        partial.write_text("half")
        raise OSError(code, os.strerror(code))
    assert only_old_is_left(tmp_path)


def test_a_real_limit_on_file_size_is_a_storage_error_and_the_target_stays(tmp_path):
    def save(target: Path, size: int) -> None:
        with replacing(target) as partial:
            save_file({"x": np.ones(size // 4, dtype=np.float32)}, partial)

    write_text(tmp_path / "target", "old")
    limits, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        for write in (
            lambda: write_json(tmp_path / "target", "x" * 100_000),
            lambda: save(tmp_path / "target", 100_000),
        ):
            with pytest.raises(StorageError, match="target: could not be written: "):
                write()
            assert only_old_is_left(tmp_path)
        save(tmp_path / "target", 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)
    assert (tmp_path / "target").stat().st_size > 10_000, "control: what fits is written"


def test_json_and_rows_come_back_as_they_were_and_nothing_else_is_read(tmp_path):
    value = {"a": [1, 2.5, None, "ä\u2028\x85"], "b": {"c": True}}
    write_json(tmp_path / "j", value)
    write_rows(tmp_path / "r", [value, {"text": "line\nbreak \u2029 \x1c"}])
    assert read_rows(tmp_path / "r") == [value, {"text": "line\nbreak \u2029 \x1c"}]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "j", {"a": float("nan")})
    assert read_json(tmp_path / "j") == value
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, json_says, rows_say in (("none", *["no such file"] * 2), ("bytes", "not valid JSON", "damaged")):
        with pytest.raises(ModelError, match=f"{name}: {json_says}"):
            read_json(tmp_path / name, ModelError)
        with pytest.raises(DataError, match=f"{name}: {rows_say}"):
            read_rows(tmp_path / name)
    assert require(tmp_path, "fetch") == tmp_path
    with pytest.raises(DataError, match="none: not there; `dvc repro fetch` makes it"):
        require(tmp_path / "none", "fetch")


def test_a_users_mistake_is_one_line_and_a_programmers_mistake_keeps_its_traceback(project, capsys, monkeypatch):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr("stages.workflow.core.settings.require_known", lambda *_: None)

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

    assert run("--task", "mistake", "--seed", "4") == (2, "", "test_artifacts@mistake-4: seed 5 is no good\n")
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


IMPORTING = """
    import os, signal, sys
    from skill_grafting.command import guarded

    def main():
        {}

    guarded("mask@toy-1", main)
"""


@pytest.mark.parametrize("body", ["import half", "os.kill(os.getpid(), signal.SIGINT)"])
def test_an_interrupted_import_says_so_too_whatever_the_library_makes_of_it(tmp_path, body):
    library = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    raise ImportError('half')"
    (tmp_path / "half.py").write_text(library)
    assert finished(script(tmp_path, IMPORTING.format(body))) == (130, "", "mask@toy-1: stopped\n")


FAMILY = """
    import os, subprocess, sys, time
    from stages.workflow.core.stage import stage

    @stage
    def main() -> None:
        print(os.getpid(), flush=True)
        time.sleep(60)

    if sys.argv[1:]:
        more = {"DVC_STAGE": "toy"} if sys.argv[1] == "bound" else {}
        subprocess.Popen([sys.executable, "script.py"], env=os.environ | more)
        time.sleep(60)
    main([])
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


def test_a_listed_file_that_is_read_again_is_hashed_once_and_any_change_is_seen(tmp_path, monkeypatch):
    file, hashed = tmp_path / "model.safetensors", []
    file.write_bytes(b"weights")
    digest.list_files(tmp_path)
    whole = digest.sha256_of
    monkeypatch.setattr(digest, "sha256_of", lambda path: hashed.append(path.name) or whole(path))

    def read() -> int:
        digest.require_listed(tmp_path, file.name)
        return len(hashed)

    assert (read(), read()) == (1, 2), "one that was just written may be written again at the same time"
    monkeypatch.setattr(digest, "SETTLED", 0)
    time.sleep(0.02)
    assert (read(), read(), read()) == (3, 3, 3)
    assert digest.SEEN[-5:] == [digest.SEEN[-1]] * 5, "each time it is an input"
    stamp = file.stat().st_mtime_ns
    file.write_bytes(b"Weights")
    os.utime(file, ns=(stamp, stamp))
    time.sleep(0.02)
    for _ in range(2):
        with pytest.raises(ModelError, match="model.safetensors: damaged"):
            digest.require_listed(tmp_path, file.name)
    assert len(hashed) == 4
