"""Kills of stages and of DVC at random moments, over all pipelines: nothing is lost, half-written, left running or in need of hands.

A copy of the project is killed again and again, started anew as it stands, and has to end with the same bytes as one that ran undisturbed.
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
from itertools import chain

from stages.commands.mend import stages_at_work
from stages.lib.progress import progress
from tests.chaos.campaign import Row
from tests.chaos.copies import EVERYTHING, MENDED, differences, locks
from tests.dvc_project import Copy

# seconds, at most, between a start and a kill: of DVC, which needs some of them to come to the first stage that runs; of a
# stage, from the first one on
PAUSE = 12.0
# one start in TEN goes on for so much longer, or no kill would ever lie behind the first stage that takes longer than a pause
LONGER, TEN = 80.0, 10
PATIENCE = 60
# a process, and the signal that it gets
Victim = tuple[str, signal.Signals]
VICTIMS: list[Victim] = [
    (who, how) for who in ("dvc", "stage") for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
]


def run(straight: Copy, killed: Copy, cases: int, number: int) -> Iterator[Row]:
    """Check, cases, failures: what `cases` kills of the second copy did, in which nothing has run yet."""
    counts: Counter[Victim] = Counter()
    failures: dict[Victim, list[str]] = {}
    ends: list[list[str]] = []
    chance = random.Random(number)
    # a shell has what it starts in the background pass over Ctrl-C, and so would all that this starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with progress("kills", cases, "kill") as bar:
        while counts.total() < cases:
            killed.run(*MENDED)
            victim = chance.choice(VICTIMS)
            found = _kill(killed, victim, chance)
            if found is None:
                # everything has run in spite of the kills: from nothing again
                ends.append(differences(straight, killed))
                _forget(killed)
                continue
            counts[victim] += 1
            bar.update(1)
            failures.setdefault(victim, []).extend(found)
            for line in found:
                print(f"{victim[0]} gets {victim[1].name}: {line}", file=sys.stderr, flush=True)
    for victim in VICTIMS:
        yield f"{victim[0]} gets {victim[1].name}", counts[victim], failures.get(victim, [])
    yield "the rest runs without hands", 1, _finish(killed)
    ends.append(differences(straight, killed))
    yield "same bytes as undisturbed", len(ends), list(chain(*ends))


def _kill(copy: Copy, victim: Victim, chance: random.Random) -> list[str] | None:
    """What went wrong at one kill; None if all stages came to their end before it."""
    who, how = victim
    with copy.start(*EVERYTHING) as dvc:
        if who == "stage":
            _await_stage(copy, dvc)
        time.sleep(chance.uniform(0.0, PAUSE) + LONGER * (chance.randrange(TEN) == 0))
        stages = _await_stage(copy, dvc) if who == "stage" else _at_work(copy)
        if dvc.poll() is not None:
            return [_last_words(copy)] if dvc.returncode else None
        # Ctrl-C reaches both, and DVC alone passes over it while a stage runs
        both = [dvc.pid, *stages] if how == signal.SIGINT else [dvc.pid]
        for pid in both if who == "dvc" else stages[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        try:
            dvc.wait(PATIENCE)
            found = []
        except subprocess.TimeoutExpired:
            dvc.kill()
            found = [f"went on for {PATIENCE} seconds"]
    orphans = _left_running(copy)
    return found + [f"left running: {orphans}"] * bool(orphans)


def _await_stage(copy: Copy, dvc: subprocess.Popen) -> list[int]:
    """Numbers of the processes of a stage, as soon as there is one; none if DVC ends before."""
    while not (found := _at_work(copy)) and dvc.poll() is None:
        time.sleep(0.1)
    return found


def _at_work(copy: Copy) -> list[int]:
    return [pid for pid, _ in stages_at_work(copy.folder)]


def _forget(copy: Copy) -> None:
    """Have DVC know of nothing that has run."""
    shutil.rmtree(copy.folder / ".dvc/cache/runs", ignore_errors=True)
    for folder in locks(copy):
        (copy.folder / folder / "dvc.lock").unlink()


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


def _finish(copy: Copy) -> list[str]:
    copy.run(*MENDED)
    with copy.start(*EVERYTHING) as dvc:
        return [_last_words(copy)] if dvc.wait() else []
