"""Which task is handed to Dask when: in an order that fits, and no more at once than fit into the machines."""

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress

from distributed import Client, Future, KilledWorker, wait

from stages.commands.parallel.run_stage import Outcome, Runner, run_stage
from stages.commands.parallel.tasks import Task
from stages.lib.errors import StorageError

MEMORY, GPU = "MEMORY", "GPU"
# seconds between two looks at how many workers there are
PATIENCE = 2


def outcomes_of(tasks: Sequence[Task], client: Client, runner: Runner) -> Iterator[Outcome]:
    """The outcome of each task, in the order in which they end.

    `tasks` come as DVC could take them; of those that can start, the one with the longest way to the end starts first.

    A task is handed to Dask when what it needs is done and a worker is free: of more, each would wait for the worker that
    holds what it needs, though others are free, since Dask takes from a busy worker only what it thinks to be long.
    """
    waiting, ended = longest_way_first(tasks), {}
    running: dict[Future, Task] = {}
    while waiting or running:
        for task in [*waiting]:
            if culprit := next((name for name in task.needs if name in ended and ended[name].code), ""):
                waiting.remove(task)
                yield Outcome(task.name, kept_by=culprit)
        free, gpus, memory = slots(client)
        yet_to_end = {task.name for task in [*waiting, *running.values()]}
        for task in [one for one in waiting if not yet_to_end & {*one.needs}]:
            # a stage that wants more than there are gets all, and says itself what it lacks
            wanted = min(task.processes, int(gpus))
            busy = sum(other.processes for other in running.values())
            if len(running) < free and not (wanted and busy + wanted > gpus):
                needs = {MEMORY: min(task.memory_mib, memory), GPU: wanted}
                resources = {name: amount for name, amount in needs.items() if amount}
                key = f"{task.name} {runner.name}"
                stage = (runner, task.name, task.target, wanted, task.processes > 0)
                future = client.submit(run_stage, *stage, key=key, pure=False, resources=resources)
                running[future] = task
                waiting.remove(task)
        for future in _finished([*running]):
            task = running.pop(future)
            ended[task.name] = _outcome(task.name, future)
            yield ended[task.name]


def longest_way_first(tasks: Sequence[Task]) -> list[Task]:
    """Tasks by the time until the last of those that need them is done, the longest first; equals in the order that they have.

    A long training would else wait until all that is short had its turn, and end alone.
    """
    ways = {task.name: 0.0 for task in tasks}
    for task in reversed(tasks):
        ways[task.name] += task.seconds
        for name in task.needs:
            ways[name] = max(ways[name], ways[task.name])
    return sorted(tasks, key=lambda task: ways[task.name], reverse=True)


def slots(client: Client) -> tuple[int, float, float]:
    """Stages at once, GPUs of all workers together, and MiB of the one that has most; 0 of what no worker says that it offers."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    gpus = sum(worker["resources"].get(GPU, 0) for worker in workers)
    memory = max((worker["resources"].get(MEMORY, 0) for worker in workers), default=0)
    return sum(worker["nthreads"] for worker in workers), gpus, memory


def _finished(futures: list[Future]) -> set[Future]:
    """Those that have ended, after a while at the latest, for meanwhile more workers may have come."""
    with suppress(TimeoutError, CancelledError):
        return wait(futures, timeout=PATIENCE, return_when="FIRST_COMPLETED").done if futures else set()
    return {future for future in futures if future.cancelled()}


def _outcome(stage: str, future: Future) -> Outcome:
    """The outcome of a task, also of one whose workers died one after another; raises StorageError if the scheduler is gone."""
    try:
        return future.result()
    except KilledWorker as problem:
        return Outcome(stage, 1, f"its worker died, and so did {problem.allowed_failures} more that took it over")
    except CancelledError:
        raise StorageError("the scheduler is gone; what is done is kept, run again") from None
