"""Kills of stages and of DVC at random moments, over all pipelines: nothing is lost, half-written, left running or in need of hands.

A copy of the project is killed again and again, started anew as it stands, and has to end with the same bytes as one that ran undisturbed.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from stages.commands.mend import stages_at_work
from stages.lib.progress import progress
from tests.chaos.campaign import Row
from tests.chaos.copies import EVERYTHING, MENDED, differences
from tests.dvc_project import Copy

# seconds, at most, between a start and a kill: DVC needs some of them to come to the first stage that runs
PAUSE = 12.0
# one start in TEN goes on for so much longer, or no kill would ever lie behind the first stage that takes longer than a pause
LONGER, TEN = 80.0, 10
PATIENCE = 60
VICTIMS = [(who, how) for who in ("dvc", "stage") for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)]


def run(straight: Copy, killed: Copy, cases: int, number: int) -> Iterator[Row]:
    """Check, cases, failures: what `cases` kills of the second copy did, in which nothing has run yet."""
    counts, failures = _kill(killed, cases, random.Random(number))
    for who, how in VICTIMS:
        yield f"{who} gets {how.name}", counts[who, how], failures.get((who, how), [])
    yield "the rest runs without hands", 1, _finish(killed)
    yield "same bytes as undisturbed", 1, differences(straight, killed)


def _kill(copy: Copy, cases: int, draw: random.Random) -> tuple[Counter, dict[tuple, list[str]]]:
    counts: Counter = Counter()
    failures: dict[tuple, list[str]] = {}
    # a shell has what it starts in the background pass over Ctrl-C, and so would all that this starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with progress("kills", cases, "kill") as bar:
        while counts.total() < cases:
            victim = draw.choice(VICTIMS)
            copy.run(*MENDED)
            with copy.start(*EVERYTHING) as dvc:
                time.sleep(draw.uniform(0.0, PAUSE) + LONGER * (draw.randrange(TEN) == 0))
                stages = [pid for pid, _ in stages_at_work(copy.folder)]
                if dvc.poll() is not None:
                    return counts, failures | ({} if dvc.returncode == 0 else {victim: [_last_words(copy)]})
                if victim[0] == "stage" and not stages:
                    dvc.kill()
                    continue
                # Ctrl-C reaches both, and DVC alone passes over it while a stage runs
                both = [dvc.pid, *stages] if victim[1] == signal.SIGINT else [dvc.pid]
                for pid in both if victim[0] == "dvc" else stages[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, victim[1])
                try:
                    dvc.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    dvc.kill()
                    failures.setdefault(victim, []).append(f"went on for {PATIENCE} seconds")
            counts[victim] += 1
            bar.update(1)
            if orphans := _left_running(copy):
                failures.setdefault(victim, []).append(f"left running: {orphans}")
    return counts, failures


def _left_running(copy: Copy, seconds: float = 10.0) -> list[int]:
    end = time.monotonic() + seconds
    while (found := [pid for pid, _ in stages_at_work(copy.folder)]) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def _last_words(copy: Copy) -> str:
    return copy.folder.with_suffix(".txt").read_text().strip()[-500:]


def _finish(copy: Copy) -> list[str]:
    copy.run(*MENDED)
    with copy.start(*EVERYTHING) as dvc:
        return [_last_words(copy)] if dvc.wait() else []
