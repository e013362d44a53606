"""Tasks on Dask: several at once, in an order that fits, and no more than fit into the machine."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client, LocalCluster, as_completed
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stages.commands.parallel.run_stage import Outcome, lend_gpus, run_stage, running, stopping
from stages.commands.parallel.tasks import Task

MEMORY, GPU = "MEMORY", "GPU"


def side_by_side(tasks: Sequence[Task], workers: int, resources: dict[str, float], environment: dict[str, str]) -> int:
    """Run the tasks on a cluster of threads in this process; gives the exit code of one that failed, or 0.

    `resources`: MiB (MEMORY) and GPUs for all of them together; `environment`: of their processes, beside ours.
    """
    if not tasks:
        return 0
    lend_gpus(int(resources[GPU]))
    # that a run was stopped is said by us
    logging.getLogger("distributed").setLevel(logging.ERROR)
    kept, failed = [], []
    with (
        LocalCluster(n_workers=1, threads_per_worker=workers, processes=False, dashboard_address=None, resources=resources) as cluster,
        Client(cluster) as client,
        _progress(tasks) as done,
        stopping(),
    ):  # fmt: skip
        futures: dict[str, Any] = {}
        for task in tasks:
            on_gpu = task.has_model and resources[GPU] > 0
            needs = {MEMORY: min(task.memory_mib, resources[MEMORY]), **({GPU: 1} if on_gpu else {})}
            before = [futures[name] for name in task.needs]
            futures[task.name] = client.submit(
                run_stage,
                task.name,
                task.target,
                environment,
                on_gpu,
                *before,
                key=task.name,
                pure=False,
                resources=needs,
            )
        for _, outcome in as_completed([*futures.values()], with_results=True):
            done(outcome)
            kept += [outcome] if outcome.kept_by else []
            failed += [outcome] if outcome.code else []
    for outcome in failed:
        print(f"\n{outcome.stage} failed:\n{outcome.text.strip()}", file=sys.stderr)
    if kept:
        names = ", ".join(outcome.stage for outcome in kept)
        print(f"\nnot started, as they need what failed: {names}", file=sys.stderr)
    return failed[0].code if failed else 0


@contextmanager
def _progress(tasks: Sequence[Task]) -> Iterator[Callable[[Outcome], None]]:
    """A bar over all tasks by what the plan says that they take, drawn on a terminal alone, and a line for each that is done."""
    console, seconds = Console(highlight=False), {task.name: task.seconds for task in tasks}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[stages]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        whole, finished = bar.add_task("all", total=sum(seconds.values()), stages=f"0/{len(tasks)}"), []

        def done(outcome: Outcome) -> None:
            finished.append(outcome)
            if not outcome.kept_by:
                ended = "failed" if outcome.code else "done"
                console.print(f"{ended} {outcome.stage} ({outcome.seconds:.1f} s)", soft_wrap=True)
            bar.update(
                whole,
                description=", ".join(running()) or "all",
                stages=f"{len(finished)}/{len(tasks)}",
                advance=seconds[outcome.stage],
            )

        yield done
