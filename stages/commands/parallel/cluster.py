"""Tasks on Dask, in threads of this process or on a cluster: what they are handed to, shown, told and stopped."""

import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from urllib.parse import urlsplit

from dask import config
from distributed import Client, LocalCluster
from rich.console import Console

from stages.commands.parallel.clone import State, difference
from stages.commands.parallel.progress import Board, printed_by_stage, told, watched
from stages.commands.parallel.run_stage import Runner, lend_gpus, stop_run
from stages.commands.parallel.schedule import GPU, MEMORY, outcomes_of, slots
from stages.commands.parallel.tasks import Task
from stages.lib.errors import StorageError

LOCALHOST = "127.0.0.1"
# Dask would take a twentieth of a core from the stages: it looks a hundred times a second at threads that only wait for DVC.
# After five minutes of a laptop's sleep, or of Ctrl-Z, it would give up its only worker, which are threads of this process.
CALM = {
    "distributed.scheduler.worker-ttl": None,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
TERMINATED = 128 + signal.SIGTERM
START = "python -m dask worker ADDRESS --nthreads 1, in a clone of the project"


@contextmanager
def this_machine(workers: int, memory_mib: float, gpus: Sequence[str]) -> Iterator[Client]:
    """So many threads of this process; nothing listens but a page for this machine alone."""
    lend_gpus(gpus)
    # that a run was stopped is said by us
    logging.getLogger("distributed").setLevel(logging.ERROR)
    # threads of one process need no network
    warnings.filterwarnings("ignore", "Couldn't detect a suitable IP address", RuntimeWarning)
    anywhere = f"{LOCALHOST}:0"
    with (
        config.set(CALM),
        LocalCluster(
            n_workers=1, threads_per_worker=workers, processes=False, resources={MEMORY: memory_mib, GPU: len(gpus)},
            dashboard_address=anywhere, worker_dashboard_address=anywhere,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


@contextmanager
def cluster_at(address: str, workers: int, head: State) -> Iterator[Client]:
    """A cluster that runs already, once it has so many workers.

    Raises StorageError if nobody answers, or a worker's clone is another than the head's.
    """
    for name in ("distributed", "distributed.client", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address)
    except (OSError, ValueError) as problem:
        raise StorageError(f"no scheduler of Dask answers at {address}: {problem}") from None
    with client:
        if missing := workers - len(client.nthreads()):
            print(f"waits for {missing} more worker(s): {START.replace('ADDRESS', address)}", flush=True)
            client.wait_for_workers(workers)
        try:
            refused = sorted(filter(None, client.run(difference, head).values()))
        except ImportError as problem:
            raise StorageError(f"a worker has no code of the project ({problem}): start it by {START}") from None
        if refused:
            raise StorageError("\n".join(refused))
        yield client


def side_by_side(tasks: Sequence[Task], client: Client, runner: Runner) -> int:
    """Run the tasks and show what reports and failed ones said; gives the exit code of one that failed, or 0."""
    board, outcomes = Board(tasks, slots(client)[0]), []
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())  # whatever FORCE_COLOR says
    if console.is_terminal:
        console.print(f"Dask tells more at {_dashboard(client)}", soft_wrap=True)
    client.subscribe_topic(runner.name, lambda event: board.begin(event[1]))
    with watched(board, console), _stopping(client, runner):
        for outcome in outcomes_of(tasks, client, runner):
            outcomes.append(outcome)
            board.end(outcome)
            if not outcome.kept_by:
                console.print(told(outcome), soft_wrap=True)
    reports = {task.name for task in tasks if not task.is_kept}
    for outcome in outcomes:
        if outcome.stage in reports and outcome.text and not outcome.code:
            print(f"\n{printed_by_stage(outcome.text)}")
    failed = [outcome for outcome in outcomes if outcome.code]
    for outcome in failed:
        print(f"\n{outcome.stage} failed:\n{outcome.text.strip()}", file=sys.stderr)
    if kept := ", ".join(outcome.stage for outcome in outcomes if outcome.kept_by):
        print(f"\nnot started, as they need what failed: {kept}", file=sys.stderr)
    return failed[0].code if failed else 0


def _dashboard(client: Client) -> str:
    """Where Dask shows what it does; its pictures need bokeh, which the project doesn't, and without it there are tables."""
    info = client.scheduler_info(n_workers=0)
    host = LOCALHOST if info["address"].startswith("inproc") else urlsplit(info["address"]).hostname
    page = "status" if find_spec("bokeh") else "info/main/workers.html"
    return f"http://{host}:{info['services'].get('dashboard')}/{page}"


@contextmanager
def _stopping(client: Client, runner: Runner) -> Iterator[None]:
    """Where this is left early, whatever the reason (SIGTERM is one), start no more stages and end those that run."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    except BaseException:
        with suppress(Exception):
            client.run(stop_run, runner.name)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
