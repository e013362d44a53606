"""Mishaps around a finished project: a full disk, a kill in the middle of a save, a folder that may not be written, a clock
set back, two runs at once, an edit in the middle of a run, a damaged cache.  Nothing is lost, half-written or silently wrong.

They run on copies of a project in which all pipelines have run.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stages.lib.progress import progress
from tests.chaos.campaign import Row
from tests.chaos.copies import EVERYTHING, READABLE, differences, locks, outputs, stages_at_work
from tests.dvc_project import Copy, twin
from tests.sealed import flip_bit

PLACES = ("models", "masks", "metrics")
DAY = 86_400
READ_ONLY = ("finetune", "mask", "evaluate")
SPARSITIES = ("0.02", "0.03")
DAMAGED = 12


def run(finished: Copy, number: int) -> Iterator[Row]:
    """Check, cases, failures of each situation."""
    chance = random.Random(number)
    for name, check in SITUATIONS.items():
        yield name, *check(finished, chance)


Found = tuple[int, list[str]]


def full_disk(finished: Copy, chance: random.Random) -> Found:
    """Every kind of stage, with room for less than its largest file."""

    def limited(copy: Copy, _name: str, command: str, outs: list[str]) -> str:
        sizes = [path.stat().st_size for out in outs for path in _files(copy.folder / out)]
        room = chance.randrange(max(sizes))

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        return _unless_refused(_by_hand(copy, command, preexec_fn=limit))

    return _every_kind(finished, limited)


def kill_in_a_save(finished: Copy, _chance: random.Random) -> Found:
    """Every kind of stage, its first output torn and the process killed at the moment at which it would get its name.

    DVC has it whole again at its next run, and the stages after it find what they read.
    """

    def torn(copy: Copy, name: str, command: str, outs: list[str]) -> str:
        made = [out for out in outs if any(_files(copy.folder / out))]
        target = next((out for out in made if (copy.folder / out).is_dir()), made[0])
        # a stage that writes into a folder of others gives each of them its name
        places = [target, *(str(path.relative_to(copy.folder)) for path in _files(copy.folder / target))]
        for place in places:
            done = _by_hand(copy, command, TEST_TARGET=place)
            if done.returncode != 0:
                copy.repro("--single-item", name)
                return "" if done.returncode == -signal.SIGKILL else done.stderr[-300:]
        return f"{target} was never given its name"

    return _every_kind(finished, torn)


def read_only(finished: Copy, _chance: random.Random) -> Found:
    """Somebody who may read everything and write nothing."""

    def refused(copy: Copy, name: str, command: str, _outs: list[str]) -> str:
        if name.partition("@")[0] not in READ_ONLY:
            return ""
        places = [path for top in PLACES for path in (copy.folder / top, *(copy.folder / top).rglob("*"))]
        for path in places:
            path.chmod(0o555 if path.is_dir() else 0o444)
        # to root the modes of files mean nothing
        allowed = "setpriv --bounding-set=-dac_override,-dac_read_search " if os.geteuid() == 0 else ""
        done = _by_hand(copy, f"{allowed}sh -c '{command}'")
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
        return _unless_refused(done, "denied")

    return _every_kind(finished, refused, READ_ONLY)


def _unless_refused(done: subprocess.CompletedProcess, word: str = "") -> str:
    """The output of a stage that did not say in one line, with this word in it, that it could not write."""
    said = any("could not be written" in line and word in line for line in done.stderr.splitlines())
    refused = done.returncode == 2 and said and "Traceback" not in done.stderr
    return "" if refused else done.stderr[-300:] or "ended well"


def clock_set_back(finished: Copy, _chance: random.Random) -> Found:
    """All files are of tomorrow: nothing runs; one of them changes at a time before that: it is noticed and mended."""
    copy = _another(finished, "clock")
    later = time.time() + DAY
    for path in _files(copy.folder):
        if ".git" not in path.parts and ".dvc" not in path.parts:
            os.utime(path, (later, later))
    failures = [f"ran {stage}" for stage in copy.run(*EVERYTHING).executed]
    sample = next((copy.folder / "data/sample").rglob("train.jsonl"))
    content = sample.read_bytes()
    sample.chmod(0o644)
    sample.write_bytes(content.swapcase())
    os.utime(sample, (later - 2 * DAY, later - 2 * DAY))
    copy.run(*EVERYTHING)
    failures += [] if sample.read_bytes() == content else [f"{sample.name} stayed another"]
    return 2, failures + differences(finished, copy)


def two_runs_at_once(finished: Copy, chance: random.Random) -> Found:
    """The second waits, or says that it can't run now; together with one more run they end as a single one does."""
    alone, copy = _another(finished, "alone"), _another(finished, "together")
    for one in (alone, copy):
        one.set(f"graft.sparsity={SPARSITIES[0]}")
    alone.run("dvc", "repro")
    with copy.start("dvc", "repro") as first:
        time.sleep(chance.uniform(0, 5))
        second = _by_hand(copy, "dvc repro")
        first.wait()
    said = second.stdout + second.stderr
    failures = [] if second.returncode == 0 or "lock" in said.lower() or "busy" in said.lower() else [said[-300:]]
    copy.run("dvc", "repro")
    return 1, failures + differences(alone, copy)


def edit_in_the_middle(finished: Copy, _chance: random.Random) -> Found:
    """A setting is edited while a stage runs: that is an error if the stage has read it, and what the next run makes is of the new one."""
    alone, copy = _another(finished, "afterwards"), _another(finished, "meanwhile")
    alone.set(f"graft.sparsity={SPARSITIES[1]}")
    alone.run("dvc", "repro")
    copy.set(f"graft.sparsity={SPARSITIES[0]}")
    with copy.start("dvc", "repro") as running:
        while running.poll() is None and not any("stages.mask" in words for _, words in stages_at_work(copy.folder)):
            time.sleep(0.05)
        copy.set(f"graft.sparsity={SPARSITIES[1]}")
        code = running.wait()
    said = copy.folder.with_suffix(".txt").read_text()
    # before the stage has read its settings an edit is nothing but in time
    failures = [] if code == 0 or "nothing is recorded" in said else [said[-300:]]
    copy.run("dvc", "repro")
    return 1, failures + differences(alone, copy)


def damaged_cache(finished: Copy, chance: random.Random) -> Found:
    """Objects of the cache edited, and nothing but the cache to take them from: DVC sees that they may be written."""
    copy = _another(finished, "cache")
    outs = [out for out in outputs(copy) if not out["md5"].endswith(".dir")]
    places = [(out, copy.folder / f".dvc/cache/files/md5/{out['md5'][:2]}/{out['md5'][2:]}") for out in outs]
    held = [(out, place) for out, place in places if place.exists()]
    for out, place in chance.sample(held, min(DAMAGED, len(held))):
        (copy.folder / out["path"]).unlink(missing_ok=True)
        place.chmod(0o644)
        flip_bit(place, chance.randrange(place.stat().st_size))
    copy.run(*EVERYTHING)
    return DAMAGED, differences(finished, copy)


SITUATIONS: dict[str, Callable[[Copy, random.Random], Found]] = {
    "full disk": full_disk,
    "kill in a save": kill_in_a_save,
    "read-only folder": read_only,
    "clock set back": clock_set_back,
    "two runs at once": two_runs_at_once,
    "edit in the middle of a run": edit_in_the_middle,
    "damaged cache": damaged_cache,
}


def _every_kind(
    finished: Copy, disturb: Callable[[Copy, str, str, list[str]], str], kinds: tuple[str, ...] = ()
) -> Found:
    """One stage of every kind of every pipeline (or of these), disturbed; what it should have made is as before, or can be made."""
    copy, failures = _another(finished, "disturbed"), []
    stages = [stage for stage in _stages(copy) if not kinds or stage[0].partition("@")[0] in kinds]
    with progress(disturb.__name__, len(stages), "stage") as bar:
        for name, command, outs in stages:
            if said := disturb(copy, name, command, outs):
                failures.append(f"{name}: {said}")
            bar.update(1)
    copy.run(*READABLE)
    copy.run(*EVERYTHING)
    return len(stages), failures + differences(finished, copy)


def _stages(copy: Copy) -> Iterator[tuple[str, str, list[str]]]:
    """The first stage of every kind as DVC names it, its command and its outputs."""
    for folder, lock in locks(copy).items():
        file = "" if folder == "." else f"{folder}/dvc.yaml:"
        kinds = {name.partition("@")[0]: (name, entry) for name, entry in reversed(lock.items())}
        for kind, (name, entry) in sorted(kinds.items()):
            if not kind.endswith("code"):
                yield file + name, entry["cmd"], [out["path"] for out in entry["outs"]]


def _by_hand(copy: Copy, command: str, preexec_fn: Any = None, **more: object) -> subprocess.CompletedProcess:
    streams = {"capture_output": True, "text": True, "preexec_fn": preexec_fn}
    return subprocess.run(["sh", "-c", command], cwd=copy.folder, env=copy.environment | more, **streams)


def _another(finished: Copy, name: str) -> Copy:
    shutil.rmtree(finished.folder.with_name(name), ignore_errors=True)
    return twin(finished, name)


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
