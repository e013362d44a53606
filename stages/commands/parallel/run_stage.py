"""One stage as a process of DVC, in a group of processes of its own, so that all that it starts can be stopped with it.

Dask calls these functions in the process that runs the stages: the runner's own, or a worker's.  Where the runner has a process
that has imported DVC, that of a stage is a fork of it.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from stages.commands.parallel.bound import bound
from stages.commands.parallel.clone import State, difference
from stages.lib.forks import Fork, waiting

# seconds that stages have to end after they were asked to
GRACE = 15.0
ALONE = (sys.executable, "-m", "stages.commands.parallel.quick_dvc", "--wait-for-lock", "repro", "--single-item")
IN_CLONE = (sys.executable, "-m", "stages.commands.parallel.in_clone")
# what ALONE imports of DVC, a quarter of a second
DVC = ("dvc.cli", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.cache", "dvc.dependency.param")
# seconds between two looks at what was asked to end
LOOK = 0.02

_running: dict[tuple[str, str], Fork | subprocess.Popen] = {}
_starting, _lending = threading.Lock(), threading.Lock()
_stopped: set[str] = set()
_free_gpus: queue.SimpleQueue[str] = queue.SimpleQueue()


@dataclass(frozen=True)
class Outcome:
    """The end of a stage: exit code, what it printed, seconds; `kept_by` is the failed stage without which it could not start."""

    stage: str
    code: int = 0
    text: str = ""
    seconds: float = 0.0
    kept_by: str = ""


@dataclass(frozen=True)
class Runner:
    """Facts that all stages of a run share: its name; of a cluster, how each worker's clone has to be.

    `forks` is the address of a process that has imported DVC, if there is one.
    """

    name: str
    environment: dict[str, str]
    state: State | None = None
    forks: str = ""


def lend_gpus(names: Iterable[str]) -> None:
    """Let as many stages at once have a GPU, each one of its own; names as in CUDA_VISIBLE_DEVICES."""
    for name in names:
        _free_gpus.put(name)


def run_stage(runner: Runner, stage: str, target: str, gpus: int, has_model: bool) -> Outcome:
    """Run a stage, by what DVC calls it, unless this clone is another than the runner's."""
    from distributed import get_worker

    if runner.state and (other := difference(runner.state)):
        return Outcome(stage, 1, other)
    command = IN_CLONE if runner.state else ALONE
    environment = waiting(runner.environment) if has_model else runner.environment
    # a worker's GPU is what it was started with
    with (
        _lent_gpus(0 if runner.state else gpus) as of_gpu,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
    ):
        start = time.monotonic()
        with _starting:
            if runner.name in _stopped:
                return Outcome(stage, kept_by="the end of all")
            process = _start([*command, target], environment | of_gpu, output.fileno(), runner.forks)
            _running[runner.name, stage] = process
        get_worker().log_event(runner.name, stage)
        code = process.wait()
        del _running[runner.name, stage]
        output.seek(0)
        return Outcome(stage, code, output.read(), time.monotonic() - start)


def _start(command: list[str], environment: dict[str, str], output: int, forks: str) -> Fork | subprocess.Popen:
    # a stage's `python` is the one that runs this, whatever the PATH of who started a worker
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = os.environ | {"PATH": path} | environment
    if forks:
        with Path(os.devnull).open() as nothing, suppress(OSError):
            return Fork(forks, command, environment, (nothing.fileno(), output, output))
    return subprocess.Popen(
        bound(command), env=environment,
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
    )  # fmt: skip


@contextmanager
def _lent_gpus(wanted: int) -> Iterator[dict[str, str]]:
    if not wanted:
        yield {}
        return
    with _lending:  # or two stages would each hold some of what both want
        names = [_free_gpus.get() for _ in range(wanted)]
    try:
        yield {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    finally:
        lend_gpus(names)


def stop_run(name: str) -> None:
    """Start no more stages of a run here, and end those that run: as Ctrl-C would; what does not end in time is killed."""
    with _starting:
        _stopped.add(name)
    for how in (signal.SIGINT, signal.SIGKILL):
        for group in (alive := _alive(name)):
            with suppress(ProcessLookupError):
                os.killpg(group, how)
        end = time.monotonic() + GRACE
        while alive & _alive(name) and time.monotonic() < end:
            time.sleep(LOOK)


def _alive(name: str) -> set[int]:
    return {process.pid for (run, _), process in [*_running.items()] if run == name}
