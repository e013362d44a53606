"""Commands of stages on Dask: in threads of this process, or on a cluster whose workers share this folder."""

import logging
import os
import queue
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from dask import config
from distributed import Client, Future, KilledWorker, LocalCluster, Status, WorkerPlugin, get_worker

from stages.lib.errors import StorageError
from stages.workflow import forks

MEMORY, GPU = "MEMORY", "GPU"
# Dask would take a twentieth of a core from the stages, and give up its worker after five minutes of a laptop's sleep
CALM = {
    "distributed.scheduler.worker-ttl": None,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
# seconds between two looks at whether a stage was called off, and until one that doesn't end by SIGINT is killed
LOOK, GRACE = 0.25, 10.0

_free_gpus: queue.SimpleQueue[str] = queue.SimpleQueue()


@dataclass(frozen=True)
class Job:
    """The command of a stage, and what it is given: folder, environment, MiB of memory, whether it computes on a GPU."""

    name: str
    command: str
    folder: str
    environment: Mapping[str, str]
    memory: float
    on_gpu: bool


@dataclass(frozen=True)
class Outcome:
    """The end of a command: exit code, what it printed, seconds."""

    code: int
    printed: str = ""
    seconds: float = 0.0


@contextmanager
def this_machine(workers: int, memory: float, gpus: Sequence[str]) -> Iterator[Client]:
    """So many threads of this process; `gpus` has the name of a GPU once for each stage that it may have at a time."""
    for name in gpus:
        _free_gpus.put(name)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Couldn't detect a suitable IP address", RuntimeWarning)
    offer = {MEMORY: memory, GPU: len(gpus)}
    with (
        config.set(CALM),
        LocalCluster(1, threads_per_worker=workers, processes=False, resources=offer, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def cluster_at(address: str, workers: int) -> Iterator[Client]:
    """A cluster that runs already, once it has so many workers; raises StorageError if nobody answers, or one has another folder."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address)
    except (OSError, ValueError) as problem:
        raise StorageError(f"no scheduler of Dask answers at {address}: {problem}") from None
    with client:
        if missing := workers - len(client.nthreads()):
            print(f"waits for {missing} more worker(s): `dask worker {address}` in this folder", flush=True)
            client.wait_for_workers(workers)
        try:
            client.register_plugin(_same_folder())
        except LookupError as problem:
            raise StorageError(problem.args[0]) from None
        yield client


def _same_folder() -> WorkerPlugin:
    stamp = Path(".dvc/config").stat()

    class SameFolder(WorkerPlugin):  # sent as it is: a worker can't import it before it has this folder on its path
        name = "same folder"

        def setup(self, worker: object) -> None:
            import os
            import sys

            here = os.stat(".dvc/config") if os.path.exists(".dvc/config") else None
            if not here or (here.st_ino, here.st_mtime_ns) != (stamp.st_ino, stamp.st_mtime_ns):
                told = "it has to be started in the folder of this run, which it shares"
                raise LookupError(f"worker {worker.address} stands in {os.getcwd()}: {told}")
            sys.path.insert(0, os.getcwd())

    return SameFolder()


def run_job(job: Job, lends: bool) -> Outcome:
    """Run a command in the process of a Dask worker, and end it if it is called off or if who asked for it is gone."""
    began, worker = time.monotonic(), get_worker()
    key = worker.get_current_task()
    with _lent_gpu(lends and job.on_gpu) as gpu, tempfile.NamedTemporaryFile("r", errors="replace") as printed:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = {"PATH": path, **job.environment, **gpu}
        # what has a nanny is a daemon, which may not fork
        group, wait = forks.start(job.command, job.folder, environment, printed.name, worker.nanny is None)
        while (code := wait(LOOK)) is None:
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled" or worker.status != Status.running:
                _end(group, wait)
        return Outcome(code, printed.read(), time.monotonic() - began)


def _end(group: int, wait: forks.Wait) -> None:
    """End a command and all that it has started: as Ctrl-C would, and by force if that takes too long."""
    for how, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(group, how)
        except ProcessLookupError:  # a fork that has no group of its own yet
            os.kill(group, signal.SIGKILL)
        if wait(patience) is not None:
            return


@contextmanager
def _lent_gpu(wanted: bool) -> Iterator[dict[str, str]]:
    if not wanted:
        yield {}
        return
    name = _free_gpus.get()
    try:
        yield {"CUDA_VISIBLE_DEVICES": name}
    finally:
        _free_gpus.put(name)


class Commands:
    """The commands that run.  The next thing that happens is the end of one, or the end of all by Ctrl-C or SIGTERM."""

    def __init__(self, client: Client, lends: bool) -> None:
        self._client, self._lends = client, lends
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        self._offered = {name: max(worker["resources"].get(name, 0) for worker in workers) for name in (MEMORY, GPU)}
        self._ended: queue.SimpleQueue[Future | None] = queue.SimpleQueue()
        self.running: dict[Future, Any] = {}

    def start(self, stage: Any, job: Job, priority: float, after: Callable[[Any], None]) -> None:
        """Hand a command to Dask; `after` it, in a thread of its own, comes what needn't hold up others."""
        wanted = {MEMORY: min(job.memory, self._offered[MEMORY]), GPU: min(job.on_gpu, self._offered[GPU])}
        resources = {name: amount for name, amount in wanted.items() if amount}
        key = f"{job.name} {uuid4().hex}"
        future = self._client.submit(run_job, job, self._lends, key=key, pure=False, priority=priority, resources=resources)
        self.running[future] = stage

        def ended(future: Future) -> None:
            if future.status == "finished":
                after(stage)
            self._ended.put(future)

        future.add_done_callback(ended)

    def next(self) -> tuple[Any, Outcome]:
        """The stage that ends next; raises KeyboardInterrupt if all are to end, and StorageError if the scheduler is gone."""
        if (future := self._ended.get()) is None:
            raise KeyboardInterrupt
        stage = self.running.pop(future)
        try:
            return stage, future.result()
        except KilledWorker as problem:
            return stage, Outcome(1, f"its worker died, and so did {problem.allowed_failures} more that took it over")
        except CancelledError:
            raise StorageError("the scheduler is gone; what is done is kept, run again") from None

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """While this lasts Ctrl-C and SIGTERM wait for the moment between two steps; whatever ends it ends all commands."""
        before = {how: signal.signal(how, lambda *_: self._ended.put(None)) for how in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._client.cancel([*self.running])
            for how, handler in before.items():
                signal.signal(how, handler)
