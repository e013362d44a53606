"""Kills of stages and of DVC at random moments, over all pipelines: nothing is lost, half-written, left running or in need of hands.

One copy of the project runs the profile `whole` undisturbed; another is killed again and again, started anew as it stands, and
has to end with the same bytes.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.commands import profile
from stages.lib.progress import progress
from tests.dvc_project import ROOT, Copy, clone, make_original

PAUSE = (
    12.0  # seconds, at most, between a start and a kill: DVC needs some of them to come to the first stage that runs
)
VICTIMS = [(who, how) for who in ("dvc", "stage") for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)]
EVERYTHING = ("dvc", "repro", "--all-pipelines")
MENDED = (
    "python",
    "-m",
    "stages.commands.plan",
    "--line",
)  # as `make repro` does, mends what a kill left of DVC's own files


def run(cases: int, seed: int) -> list[tuple[str, int, list[str]]]:
    """Check, cases, failures: what `cases` kills did."""
    with TemporaryDirectory(prefix="kills") as folder:
        original = make_original(Path(folder), profile.profile_settings("whole"))
        straight, killed = clone(original, "straight"), clone(original, "killed")
        for copy in (straight, killed):
            (copy.folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
            copy.run("python", "-m", "stages.commands.profile", "whole")
        straight.run(*EVERYTHING)
        counts, failures = _kill(killed, cases, random.Random(seed))
        left = _finish(killed)
        checks = [(f"{who} gets {how.name}", counts[who, how], failures.get((who, how), [])) for who, how in VICTIMS]
        return [
            *checks,
            ("the rest runs without hands", 1, left),
            ("same bytes as undisturbed", 1, _differences(straight, killed)),
        ]


def _kill(copy: Copy, cases: int, draw: random.Random) -> tuple[Counter, dict[tuple, list[str]]]:
    counts: Counter = Counter()
    failures: dict[tuple, list[str]] = {}
    with progress("kills", cases, "kill") as bar:
        while counts.total() < cases:
            victim = draw.choice(VICTIMS)
            copy.run(*MENDED)
            with copy.start(*EVERYTHING) as dvc:
                time.sleep(draw.uniform(0.0, PAUSE))
                stages = [*_stages(copy)]
                if dvc.poll() is not None:
                    return counts, failures | ({} if dvc.returncode == 0 else {victim: [_last_words(copy)]})
                if victim[0] == "stage" and not stages:
                    dvc.kill()
                    continue
                os.kill(dvc.pid if victim[0] == "dvc" else stages[0], victim[1])
                dvc.wait(60)
            counts[victim] += 1
            bar.update(1)
            if orphans := _left_running(copy):
                failures.setdefault(victim, []).append(f"left running: {orphans}")
    return counts, failures


def _stages(copy: Copy) -> Iterator[int]:
    """Processes that are stages of this copy."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if (
                any(word.startswith(b"stages.") for word in words)
                and (place / "cwd").resolve() == copy.folder.resolve()
            ):
                yield int(place.name)
        except OSError:
            continue  # it has ended


def _left_running(copy: Copy, seconds: float = 10.0) -> list[int]:
    end = time.monotonic() + seconds
    while (found := [*_stages(copy)]) and time.monotonic() < end:
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


def _differences(straight: Copy, killed: Copy) -> list[str]:
    """Outputs that are not the same, and files that are half-written."""
    one, other = (
        {path: md5 for folder in _folders(copy) for path, md5 in _outs(copy.lock(folder)).items()}
        for copy in (straight, killed)
    )
    partial = [str(path) for path in killed.folder.rglob("*.partial")]
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path)) + partial


def _folders(copy: Copy) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*dvc.yaml"], cwd=copy.folder, capture_output=True, text=True, check=True
    )
    folders = [Path(name).parent for name in listed.stdout.split()]
    return [str(folder) for folder in folders if (copy.folder / folder / "dvc.lock").exists()]


def _outs(lock: dict) -> dict[str, str]:
    return {out["path"]: out["md5"] for entry in lock.values() for out in entry["outs"]}
