"""One stage as a process of DVC, in a group of processes of its own, so that all that it starts can be stopped with it."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# seconds that stages have to end after they were asked to
GRACE = 15.0
TERMINATED = 128 + signal.SIGTERM

_running: dict[str, subprocess.Popen] = {}
_starting = threading.Lock()
_stopping = threading.Event()
_free_gpus: queue.SimpleQueue[int] = queue.SimpleQueue()


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: exit code, what it printed, seconds; `kept_by` is the failed stage without which it could not start."""

    stage: str
    code: int = 0
    text: str = ""
    seconds: float = 0.0
    kept_by: str = ""


def lend_gpus(count: int) -> None:
    """Let that many stages at once have a GPU, each one of its own."""
    for number in range(count):
        _free_gpus.put(number)


def run_stage(stage: str, target: str, environment: dict[str, str], on_gpu: bool, *before: Outcome) -> Outcome:
    """Run a stage alone, by what DVC calls it, unless one of those before it failed."""
    for one in before:
        if one.code or one.kept_by:
            return Outcome(stage, kept_by=one.kept_by or one.stage)
    start = time.monotonic()
    with _gpu(on_gpu) as of_gpu:
        with _starting:
            if _stopping.is_set():
                return Outcome(stage, kept_by="the end of all")
            _running[stage] = process = subprocess.Popen(
                ["dvc", "--wait-for-lock", "repro", "--single-item", target], env=os.environ | environment | of_gpu, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        text, _ = process.communicate()
        _running.pop(stage, None)
    return Outcome(stage, process.returncode, text, time.monotonic() - start)


def running() -> list[str]:
    """Names of the stages that run now."""
    return [*_running]


@contextmanager
def _gpu(wanted: bool) -> Iterator[dict[str, str]]:
    if not wanted:
        yield {}
        return
    number = _free_gpus.get()
    try:
        yield {"CUDA_VISIBLE_DEVICES": str(number)}
    finally:
        _free_gpus.put(number)


@contextmanager
def stopping() -> Iterator[None]:
    """At the end, whatever the reason (SIGTERM is one), start no more stages and end those that run."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        _stop_all()
        signal.signal(signal.SIGTERM, before)


def _stop_all() -> None:
    """As Ctrl-C would; what does not end in time is killed."""
    with _starting:
        _stopping.set()
    for how, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
        alive = [process for process in [*_running.values()] if process.poll() is None]
        for process in alive:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
