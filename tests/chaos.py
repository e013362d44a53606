"""Kills and mishaps over all pipelines, with the real DVC: nothing is lost, half-written, left running or in need of hands.

KILLS=200 python -m pytest tests/chaos.py (make chaos; an hour).  In a copy in which all has run, stages that DVC was made to forget,
one of every kind, are disturbed; what a start that nobody disturbs then makes has the same bytes.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from stages.commands.profile import profile_settings
from stages.workflow.core.settings import PIPELINES
from tests.dvc_project import Copy, clone, make_original, twin, wait_for

pytestmark = pytest.mark.timeout(0)

KILLS = int(os.environ.get("KILLS", "18"))
# what task arithmetic costs is measured in seconds, too
TIMED = ("metrics/edit/", "metrics/talos", "plots/talos")
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
STARTS = {"stage": ("dvc", "repro"), "dvc": ("dvc", "repro"), "runner": RUNNER}
# seconds, at most, between a start (of the stage itself, where that is killed) and a kill
PAUSES = {"stage": 5.0, "dvc": 14.0, "runner": 20.0}
# sets a dvc.lock aside that a kill cut short, of any pipeline
READABLE = ("python", "-m", "stages.workflow.plan", "study")
FOLDERS = [f"stages/{name}" if name else "." for name in PIPELINES]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Copy:
    copy = clone(make_original(tmp_path_factory.mktemp("chaos"), profile_settings("whole")), "finished")
    copy.run(*RUNNER, "--all-pipelines")
    copy.commit()
    return copy


@pytest.fixture
def copy(finished) -> Iterator[Copy]:
    yield twin(finished, "disturbed")
    shutil.rmtree(finished.folder.with_name("disturbed"))


def outputs(copy: Copy) -> dict[str, str]:
    """Every output of every pipeline with its MD5, but for those that say seconds."""
    outs = [out for folder in FOLDERS for entry in copy.lock(folder).values() for out in entry["outs"]]
    return {out["path"]: out["md5"] for out in outs if not out["path"].startswith(TIMED)}


def is_as_before(copy: Copy, finished: Copy) -> None:
    """Run what is still to run, as users would; all has to be there then, with the same bytes."""
    copy.run(*READABLE)
    copy.run("dvc", "repro", "--all-pipelines")
    assert outputs(copy) == outputs(finished)


def kinds(copy: Copy) -> Iterator[tuple[str, str, list[str]]]:
    """One stage of every kind of every pipeline: its kind, command and outputs."""
    entries = [(name.partition("@")[0], entry) for folder in FOLDERS for name, entry in copy.lock(folder).items()]
    for kind, entry in dict(entries).items():
        yield kind, entry["cmd"], [out["path"] for out in entry["outs"]]


def files(place: Path) -> list[Path]:
    return [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]


def by_hand(copy: Copy, command: str, limit: Any = None, **more: str) -> subprocess.CompletedProcess:
    streams = {"capture_output": True, "text": True, "preexec_fn": limit}
    return subprocess.run(["sh", "-c", command], cwd=copy.folder, env=copy.environment | more, **streams)


def test_a_full_disk_stops_every_kind_of_stage_in_one_line(copy, finished):
    for kind, command, outs in kinds(copy):
        room = max(path.stat().st_size for out in outs for path in files(copy.folder / out)) - 1

        def limit(room: int = room) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        done = by_hand(copy, command, limit)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), kind
        assert "could not be written" in done.stderr, kind
    is_as_before(copy, finished)


def test_a_kill_in_the_middle_of_a_save_leaves_nothing_under_the_final_name(copy, finished):
    for kind, command, outs in kinds(copy):
        # a stage that writes into a folder of others gives each of them its name
        places = [place for out in outs for place in (copy.folder / out, *files(copy.folder / out))]
        done = (by_hand(copy, command, TEST_TARGET=str(place.relative_to(copy.folder))) for place in places)
        assert any(one.returncode == -signal.SIGKILL for one in done), kind
    is_as_before(copy, finished)


def test_damaged_objects_of_the_cache_are_made_anew(copy, finished):
    for path, md5 in random.Random(0).sample([*outputs(copy).items()], 40):
        place = copy.folder / f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
        if place.is_file():
            (copy.folder / path).unlink(missing_ok=True)
            place.chmod(0o644)
            content = bytearray(place.read_bytes())
            content[len(content) // 2] ^= 1
            place.write_bytes(content)
    is_as_before(copy, finished)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("who", STARTS)
def test_killed_at_any_moment_and_started_again_it_ends_in_the_same_bytes(copy, finished, who, how):
    chance, killed = random.Random(f"{who} {how}"), 0
    while killed < KILLS / 9:
        names = forget(copy, chance.choice(FOLDERS), chance)
        while kill(copy, names, who, how, chance):
            killed += 1
            copy.run(*READABLE)
            if chance.random() < 0.3:
                break
    is_as_before(copy, finished)


def forget(copy: Copy, folder: str, chance: random.Random) -> list[str]:
    """Have DVC know of no run of four stages of a pipeline, or of all where it knows of fewer; gives what they are called."""
    shutil.rmtree(copy.folder / ".dvc/cache/runs", ignore_errors=True)
    lock = YAML(typ="safe").load(copy.folder / folder / "dvc.lock")
    names = chance.sample(sorted(lock["stages"]), min(4, len(lock["stages"])))
    for name in names:
        del lock["stages"][name]
    YAML().dump(lock, copy.folder / folder / "dvc.lock")
    return [name if folder == "." else f"{folder}/dvc.yaml:{name}" for name in names]


def kill(copy: Copy, targets: list[str], who: str, how: signal.Signals, chance: random.Random) -> bool:
    """Start these stages and send the signal to who it is for; False if all came to their end before."""
    with copy.start(*STARTS[who], *targets) as started:
        if who == "stage":
            wait_for(lambda: at_work(copy) or started.poll() is not None)
        time.sleep(chance.uniform(0.0, PAUSES[who]))
        stages = at_work(copy)
        if started.poll() is not None or (who == "stage" and not stages):
            assert started.wait() == 0, copy.folder.with_suffix(".txt").read_text()[-500:]
            return False
        # Ctrl-C reaches both, and DVC alone passes over it while a stage runs
        both = [started.pid, *stages] if (who, how) == ("dvc", signal.SIGINT) else [started.pid]
        for pid in stages[:1] if who == "stage" else both:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        started.wait(60)
    wait_for(lambda: not at_work(copy), 10)
    return True


def at_work(copy: Copy) -> list[int]:
    """Numbers of the processes of stages in a copy, by themselves or as forks of the runner."""
    found = [one for one in psutil.process_iter(["cmdline", "cwd"]) if one.info["cwd"] == str(copy.folder.resolve())]
    words = {one.pid: " ".join(one.info["cmdline"] or ()) for one in found}
    forks = {one.pid for one in found if "forkserver" in words[one.pid] and "forkserver" in words.get(one.ppid(), "")}
    return [pid for pid, said in words.items() if pid in forks or ("-m stages." in said and "workflow" not in said)]
