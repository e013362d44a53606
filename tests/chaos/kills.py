"""Kills of stages, of DVC and of the runner at random moments, over all pipelines: nothing is lost, half-written, left running
or in need of hands.

In a copy in which everything has run, a few stages of a pipeline that DVC has been made to forget run again and are killed, once
or more often, until a start that nobody disturbs: that ends well, with the same bytes.  They are processes of their own under
plain DVC, and forks under the runner.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from ruamel.yaml import YAML

from stages.lib.progress import progress
from tests.chaos.campaign import Row
from tests.chaos.copies import EVERYTHING, READABLE, TIMED, differences, locks, stages_at_work
from tests.dvc_project import Copy, twin

# seconds, at most, between a start and a kill: of a stage from its own start on, of DVC and the runner from theirs
PAUSES = {"stage": 5.0, "dvc": 14.0, "runner": 20.0}
PATIENCE = 60
# how often nobody disturbs the next start
ENOUGH = 0.3
# a process, and the signal that it gets
Victim = tuple[str, signal.Signals]
VICTIMS: list[Victim] = [(who, how) for who in PAUSES for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)]
REPRO = ("dvc", "repro")
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
FORGOTTEN = 4


def run(finished: Copy, cases: int, number: int) -> Iterator[Row]:
    """Check, cases, failures: what so many kills did in a copy of one in which everything has run."""
    copy = twin(finished, "killed")
    copy.commit()  # a dvc.lock that a kill damages comes back from there
    known = locks(copy)
    counts: Counter[Victim] = Counter()
    failures: dict[Victim, list[str]] = {}
    reached: Counter[str] = Counter()
    chance = random.Random(number)
    # a shell has what it starts in the background pass over Ctrl-C, and so would all that this starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with progress("kills", cases, "kill") as bar:
        while counts.total() < cases:
            folder = min(known, key=reached.__getitem__)
            others = [name for name in known[folder] if not name.endswith("code")]
            names = chance.sample(others, min(FORGOTTEN, len(others)))
            targets = _forget(copy, folder, names)
            disturbed = True
            while disturbed:
                copy.run(*READABLE)
                victim = chance.choice(VICTIMS)
                found = _kill(copy, targets, victim, chance)
                if found is None:  # it came to its end before
                    break
                counts[victim] += 1
                reached[folder] += 1
                bar.update(1)
                disturbed = counts.total() < cases and chance.random() >= ENOUGH
                if not disturbed:
                    found += _finish(copy, *REPRO, *targets)
                    found += [line for name in names for line in _other_bytes(copy, folder, name, known[folder][name])]
                failures.setdefault(victim, []).extend(found)
                for line in found:
                    print(f"{_words(victim)}: {' '.join(targets)}: {line}", file=sys.stderr, flush=True)
    for victim in VICTIMS:
        yield _words(victim), counts[victim], failures.get(victim, [])
    for folder in known:
        yield f"of these in {folder}", reached[folder], [] if reached[folder] else ["none"]
    yield "the rest runs without hands", 1, _finish(copy, *EVERYTHING)
    yield "same bytes as undisturbed", 1, differences(finished, copy)


def _words(victim: Victim) -> str:
    return f"{victim[0]} gets {victim[1].name}"


def _forget(copy: Copy, folder: str, names: list[str]) -> list[str]:
    """Have DVC know of no run of these stages; gives what they are called."""
    shutil.rmtree(copy.folder / ".dvc/cache/runs", ignore_errors=True)
    path, yaml = copy.folder / folder / "dvc.lock", YAML(typ="safe")
    lock = yaml.load(path)
    for name in names:
        lock["stages"].pop(name, None)
    yaml.dump(lock, path)
    return [name if folder == "." else f"{folder}/dvc.yaml:{name}" for name in names]


def _finish(copy: Copy, *words: str) -> list[str]:
    """Start it once more, as users would, and nobody disturbs it."""
    copy.run(*READABLE)
    with copy.start(*words) as dvc:
        return [_last_words(copy)] if dvc.wait() else []


def _other_bytes(copy: Copy, folder: str, name: str, known: dict) -> list[str]:
    """Outputs of a stage that are not as they were, but for those that say seconds."""
    now = {out["path"]: out["md5"] for out in copy.lock(folder).get(name, {"outs": []})["outs"]}
    outs = [out for out in known["outs"] if not out["path"].startswith(TIMED)]
    return [f"{out['path']}: other bytes" for out in outs if now.get(out["path"]) != out["md5"]]


def _kill(copy: Copy, targets: list[str], victim: Victim, chance: random.Random) -> list[str] | None:
    """The error at one kill; None if all came to their end before it."""
    who, how = victim
    with copy.start(*(RUNNER if who == "runner" else REPRO), *targets) as started:
        if who == "stage":
            _await_stage(copy, started)
        time.sleep(chance.uniform(0.0, PAUSES[who]))
        stages = _await_stage(copy, started) if who == "stage" else _at_work(copy)
        if started.poll() is not None:
            return [_last_words(copy)] if started.returncode else None
        # Ctrl-C reaches both, and DVC alone passes over it while a stage runs
        both = [started.pid, *stages] if (who, how) == ("dvc", signal.SIGINT) else [started.pid]
        for pid in stages[:1] if who == "stage" else both:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        try:
            started.wait(PATIENCE)
            found = []
        except subprocess.TimeoutExpired:
            started.kill()
            found = [f"went on for {PATIENCE} seconds"]
    orphans = _left_running(copy)
    return found + [f"left running: {orphans}"] * bool(orphans)


def _await_stage(copy: Copy, started: subprocess.Popen) -> list[int]:
    """Numbers of the processes of a stage, as soon as there is one; none if what was started ends before."""
    while not (found := _at_work(copy)) and started.poll() is None:
        time.sleep(0.1)
    return found


def _at_work(copy: Copy) -> list[int]:
    return [pid for pid, _ in stages_at_work(copy.folder)]


def _left_running(copy: Copy, seconds: float = 10.0) -> list[int]:
    end = time.monotonic() + seconds
    while (found := _at_work(copy)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _last_words(copy: Copy) -> str:
    return copy.folder.with_suffix(".txt").read_text().strip()[-500:]
