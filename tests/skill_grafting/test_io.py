"""Files under their final names are complete, whoever else writes them; what can't be written or read is one line."""

import errno
import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import Header, StoredMask, load_mask, read_mask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.support.errors import DataError, ModelError, StorageError
from skill_grafting.support.io import read_json, read_rows, write_json, write_rows, write_text
from skill_grafting.support.writing import replacing


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


def test_of_two_writers_of_a_file_one_wins_with_the_whole_of_it_and_nothing_else_is_touched(tmp_path):
    (tmp_path / "file.partial").write_text("the user's own")
    with replacing(tmp_path / "file") as slow:
        slow.write_text("slow, half")
        write_text(tmp_path / "file", "quick")
        assert (tmp_path / "file").read_text() == "quick"
        slow.write_text("slow, whole")
    assert (tmp_path / "file").read_text() == "slow, whole"
    contents = [letter * 100_000 for letter in "abcdef"]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda content: write_text(tmp_path / "file", content), contents * 5))
    assert (tmp_path / "file").read_text() in contents
    assert {path.name: path.read_text()[:9] for path in tmp_path.iterdir() if path.name != "file"} == {
        "file.partial": "the user'"
    }


def test_of_two_writers_of_a_folder_one_wins_with_the_whole_of_it(tmp_path, monkeypatch):
    def write(content: str, name: str = "old") -> None:  # a name that replacing uses itself, too
        with replacing(tmp_path / name) as made:
            made.mkdir()
            for part in "ab":
                (made / part).write_text(content)

    def others_first(path, target):
        if turns.pop("first", None):
            write("other")
        return real(path, target)

    def others_meanwhile(path, mode):
        if turns.pop("looked", None):
            write("other")
            return False
        return look(path, mode)

    real, look, turns = Path.replace, os.access, {"first": True, "looked": True}
    write("before")
    monkeypatch.setattr(Path, "replace", others_first)
    monkeypatch.setattr(os, "access", others_meanwhile)
    write("mine")
    assert not turns
    assert [(tmp_path / "old" / part).read_text() for part in "ab"] == ["mine", "mine"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcdefgh" * 5))
    assert (tmp_path / "old/a").read_text() == (tmp_path / "old/b").read_text()
    assert [*tmp_path.iterdir()] == [tmp_path / "old"]


def test_the_umask_is_never_changed_for_other_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", None)
    write_text(tmp_path / "file", "text")


def test_a_mask_is_read_from_one_file_though_another_takes_its_place_meanwhile(tmp_path, monkeypatch):
    region, path = Region({"a": (9,)}), tmp_path / "m.safetensors"
    masks = [GraftMask.from_region_indices(region, torch.tensor(places)) for places in ([1, 2], [3, 4, 5])]
    one, other = (StoredMask(mask, {"a": torch.ones(mask.selected)}, {}, {}) for mask in masks)
    for read in (lambda: read_mask(path).mask, lambda: load_mask(path)):
        write_mask(path, one)
        with monkeypatch.context() as patched:  # called once the file is open
            patched.setattr(Header, "model_validate", lambda about: write_mask(path, other))
            assert read().equals(masks[0])
        assert read().equals(masks[1]), "the control"


def read_only(path: Path) -> None:
    path.write_text("kept")
    path.chmod(0o444)


def link(path: Path) -> None:
    path.with_name("other").write_text("kept")
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(("make", "what"), [
    (os.mkfifo, "no regular file"), (link, "a link"), (lambda path: path.symlink_to("/dev/null"), "a link"), (read_only, "read-only"),
    (Path.mkdir, "a folder"),
])  # fmt: skip
def test_only_regular_files_and_nothing_are_replaced(tmp_path, make, what):
    mask, place = GraftMask.full(Region({"a": (2,)})), tmp_path / "place"
    make(place)
    before = place.lstat()
    for write in (lambda: mask.save(place), lambda: write_text(place, "x"), lambda: write_json(place, 1)):
        with pytest.raises(StorageError, match=f"place: is {what}"):
            write()
    assert place.lstat() == before and [*tmp_path.glob("*.partial")] == []
    mask.save(tmp_path / "control")
    mask.save(tmp_path / "control")


def only_old_is_left(folder) -> bool:
    return [path.name for path in folder.iterdir()] == ["target"] and (folder / "target").read_text() == "old"


@pytest.mark.parametrize("as_folder", [False, True])
def test_an_exception_leaves_the_old_content_alone(tmp_path, as_folder):
    write_text(tmp_path / "target", "old")
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


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder in which nobody can make any")
def test_a_place_that_takes_no_folders_is_named(tmp_path):
    with pytest.raises(StorageError, match="^/proc/self/target: can't be written: .*; choose another place$"):
        write_text(Path("/proc/self/target"), "new")
    with pytest.raises(FileNotFoundError, match="control"), replacing(tmp_path / "target"):
        raise FileNotFoundError("control: what the writer itself doesn't find stays as it is")


def test_a_real_limit_on_file_size_is_a_storage_error_and_the_target_stays(tmp_path):
    def save(size: int) -> None:
        with replacing(tmp_path / "target") as partial:
            save_file({"x": np.ones(size // 4, dtype=np.float32)}, partial)

    write_text(tmp_path / "target", "old")
    limits, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        for write in (lambda: write_json(tmp_path / "target", "x" * 100_000), lambda: save(100_000)):
            with pytest.raises(StorageError, match="target: could not be written: "):
                write()
            assert only_old_is_left(tmp_path)
        save(10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)
    assert (tmp_path / "target").stat().st_size > 10_000, "control: what fits is written"
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o666 & ~umask(), "and others may read it, by the umask"


def umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


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
