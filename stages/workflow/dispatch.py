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
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dask import config
from distributed import Client, Future, KilledWorker, LocalCluster, Status, Worker, WorkerPlugin, get_worker

from skill_grafting.support.errors import StorageError
from stages.workflow import forks

if TYPE_CHECKING:
    from dvc.stage import Stage

    from stages.text.tasks.settings import RuntimeParams

MEMORY, GPU = "MEMORY", "GPU"
GPUS, NO_GPU = Path("/proc/driver/nvidia/gpus"), ("", "-1", "none", "NoDevFiles")
# less polling, and no time-out of the worker while a laptop sleeps
CALM = {"distributed.scheduler.worker-ttl": None, "distributed.worker.profile.enabled": False}
# seconds between two checks for cancellation, and from SIGINT to SIGKILL
LOOK, GRACE = 0.25, 10.0
# exit code, what it printed, seconds
Outcome = tuple[int, str, float]

_free_gpus: queue.SimpleQueue[str] = queue.SimpleQueue()


def gpus_of(runtime: "RuntimeParams") -> list[str]:
    """GPUs as CUDA_VISIBLE_DEVICES names them, each once for each stage that it may have at a time."""
    resources, seen = runtime.resources, os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(len([*GPUS.glob("*")]))) if seen is None else map(str.strip, seen.split(","))
    there = [] if runtime.device == "cpu" else [*takewhile(lambda name: name not in NO_GPU, names)]  # as CUDA does
    return there[: resources.gpus] * resources.stages_per_gpu


@contextmanager
def this_machine(workers: int, memory: float, gpus: Sequence[str]) -> Iterator[Client]:
    """A local cluster of threads of this process, with one GPU for each stage with a model."""
    for name in gpus:
        _free_gpus.put(name)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Couldn't detect a suitable IP address", RuntimeWarning)
    options = dict.fromkeys(("dashboard_address", "worker_dashboard_address"), "127.0.0.1:0")  # for this machine alone
    options |= {"processes": False, "threads_per_worker": workers, "resources": {MEMORY: memory, GPU: len(gpus)}}
    with config.set(CALM), LocalCluster(1, **options) as cluster, Client(cluster) as client:
        yield client


@contextmanager
def cluster_at(address: str, workers: int) -> Iterator[Client]:
    """A running cluster, once it has so many workers; raises StorageError if nobody answers, or a worker has another folder."""
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
    file = Path(".dvc/config")
    stamp = file.stat().st_ino, file.stat().st_mtime_ns

    class SameFolder(WorkerPlugin):  # sent as it is: a worker can import it only once it has this folder on its path
        name = "same folder"

        def setup(self, worker: Worker) -> None:
            if not file.exists() or (file.stat().st_ino, file.stat().st_mtime_ns) != stamp:
                here = f"worker {worker.address} stands in {file.parents[1].absolute()}"
                raise LookupError(f"{here}: start it in the folder of this run, which it has to share")
            sys.path.insert(0, str(file.parents[1].absolute()))

    return SameFolder()


def run_command(command: str, folder: str, environment: Mapping[str, str], lends_gpu: bool) -> Outcome:
    """Run a command in the process of a Dask worker; end it if it is cancelled, or if the client is gone."""
    began, worker = time.monotonic(), get_worker()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    gpu = {"CUDA_VISIBLE_DEVICES": _free_gpus.get()} if lends_gpu else {}
    try:
        with tempfile.NamedTemporaryFile("r", errors="replace") as printed:
            more = {"PATH": path, **environment, **gpu}
            # a worker with a nanny is a daemon, which may not fork
            group, wait = forks.start(command, folder, more, printed.name, may_fork=worker.nanny is None)
            while (code := wait(LOOK)) is None:
                task = worker.state.tasks.get(worker.get_current_task())
                if task is None or task.state == "cancelled" or worker.status != Status.running:
                    _end(group, wait)
            return code, printed.read(), time.monotonic() - began
    finally:
        for name in gpu.values():
            _free_gpus.put(name)


def _end(group: int, wait: forks.Wait) -> None:
    """End a command and its children: by SIGINT, and by SIGKILL if that takes too long."""
    for how in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(group, how)
        except ProcessLookupError:  # a fork that has no group of its own yet
            os.kill(group, signal.SIGKILL)
        if wait(GRACE) is not None:
            return


class Commands:
    """The running commands; waits for the next one to end, or for Ctrl-C or SIGTERM."""

    def __init__(self, client: Client, lends_gpus: bool) -> None:
        self._client, self._lends = client, lends_gpus
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        self._offered = {name: max(worker["resources"].get(name, 0) for worker in workers) for name in (MEMORY, GPU)}
        self._ended: queue.SimpleQueue[Future | None] = queue.SimpleQueue()
        self.running: dict[Future, Stage] = {}

    def start(self, stage: "Stage", memory: float, after: Callable[["Stage"], None]) -> None:
        """Hand a stage's command to Dask; `after` it, in a thread of its own, comes what needn't hold up others."""
        asks_for = {key for dep in stage.deps for key in getattr(dep, "params", [])}
        on_gpu = not asks_for.isdisjoint({"runtime", "runtime.device"})
        needs = {MEMORY: min(memory, self._offered[MEMORY]), GPU: min(on_gpu, self._offered[GPU])}
        command = stage.cmd if isinstance(stage.cmd, str) else " && ".join(stage.cmd)
        words = command, os.path.relpath(stage.wdir), {"DVC_STAGE": stage.addressing}, self._lends and on_gpu
        key, resources = f"{stage.addressing} {uuid4().hex}", {name: amount for name, amount in needs.items() if amount}
        future = self._client.submit(run_command, *words, key=key, pure=False, resources=resources)
        self.running[future] = stage

        def ended(future: Future) -> None:
            if future.status == "finished":
                after(stage)
            self._ended.put(future)

        future.add_done_callback(ended)

    def next(self) -> tuple["Stage", Outcome]:
        """The stage that ends next; raises KeyboardInterrupt if all are to end, and StorageError if the scheduler is gone."""
        if (future := self._ended.get()) is None:
            raise KeyboardInterrupt
        stage = self.running.pop(future)
        try:
            return stage, future.result()
        except KilledWorker as problem:
            return stage, (1, f"its worker died, and so did {problem.allowed_failures} more that took it over", 0.0)
        except CancelledError:
            raise StorageError("the scheduler is gone; what is done is kept, run again") from None

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A context in which Ctrl-C and SIGTERM take effect between two steps; at its end all commands are ended."""
        before = {how: signal.signal(how, lambda *_: self._ended.put(None)) for how in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._client.cancel([*self.running])
            for how, handler in before.items():
                signal.signal(how, handler)
