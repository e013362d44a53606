"""Damage in DVC's cache is found, removed, and made good by the stage that it belongs to; DVC itself tells nothing."""

import os
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.commands import verify
from tests.dvc_project import dvc, lay_out_toy
from tests.sealed import flip_bit

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC imports
ENTRIES = """
stages:
  file: {cmd: echo one > file.txt, params: [a], outs: [file.txt]}
  folder: {cmd: mkdir folder && echo two > folder/x && echo three > folder/y, params: [a], outs: [folder]}
  report: {cmd: echo four > report.txt, params: [a], outs: [{report.txt: {cache: false}}]}
"""


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    lay_out_toy(monkeypatch, {"dvc.yaml": ENTRIES, "params.yaml": "a: 1\n"})
    for words in (["config", "cache.type", "hardlink,copy"], ["repro"]):
        assert dvc(words) == 0
    return project


def place(stage: str) -> Path:
    name = YAML(typ="safe").load(Path("dvc.lock"))["stages"][stage]["outs"][0]["md5"]
    return Path(".dvc/cache/files/md5") / name[:2] / name[2:]


def flip(path: Path) -> None:
    """Change one bit, with mode and times as they were."""
    before = path.stat()
    path.chmod(0o644)
    flip_bit(path, 0)
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def verified(monkeypatch, capfd) -> tuple[int, object]:
    monkeypatch.setattr(sys, "argv", ["verify"])
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        verify.main()
    return left.value.code, capfd.readouterr()


def executed(caplog) -> set[str]:
    caplog.clear()
    assert dvc(["repro"]) == 0
    return {line.split("'")[1] for line in caplog.messages if line.startswith("Running")}


def test_a_sound_cache_is_left_alone(toy, monkeypatch, capfd, caplog):
    code, said = verified(monkeypatch, capfd)
    # a file, and a folder with its two; not what git keeps
    assert (code, said.out, said.err) == (0, "verify: 4 objects of the cache, all as they were stored\n", "")
    assert executed(caplog) == set()


@pytest.mark.parametrize(
    ("stage", "path", "found"), [("file", "", "file.txt of file"), ("folder", "", "folder of folder"), ("folder", "folder/x", "folder/x of folder")]
)  # fmt: skip
@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b"")], ids=["flipped", "emptied"])
def test_what_is_damaged_is_found_removed_and_made_again(toy, monkeypatch, capfd, caplog, stage, path, found, harm):
    damaged = place(stage)
    if path:
        inode = Path(path).stat().st_ino
        [damaged] = [one for one in Path(".dvc/cache/files").rglob("*") if one.stat().st_ino == inode]
    good = damaged.read_bytes()
    harm(damaged)
    code, said = verified(monkeypatch, capfd)
    [first, line, last] = said.out.splitlines()
    assert code == 1 and said.err == "" and not damaged.exists()
    assert "were damaged, and are removed" in first and line.strip() == found
    assert last == f"`dvc repro` will run again: {stage}"
    assert executed(caplog) == {stage}
    assert damaged.read_bytes() == good and Path("folder/x").read_text() == "two\n"
    assert verified(monkeypatch, capfd)[0] == 0


def test_without_it_dvc_gives_back_what_is_damaged(toy, caplog):
    flip(place("file"))
    Path("file.txt").unlink()
    assert executed(caplog) == set() and Path("file.txt").read_text() != "one\n"
