"""parallel: `dvc repro` with stages that need nothing of each other side by side.

python -m stages.commands.parallel                                     the main pipeline, on all cores
python -m stages.commands.parallel stages/study/dvc.yaml               targets as `dvc repro` takes them
python -m stages.commands.parallel --workers 4 --memory 16000          no more at once than fit into so many MiB
python -m stages.commands.parallel --scheduler tcp://127.0.0.1:8786    on the workers of a cluster (stages/SCALING.md)
python -m stages.commands.parallel -S graft.sparsity=0.0005            as an experiment of DVC, like `dvc exp run`

First comes the plan's line on what runs and what it costs.  Each stage that has something to do is a task of Dask, a `dvc
repro` of that stage, in the order of DVC's own graph.  A plain `dvc repro` at the end has to find nothing to do.  A failed
stage stops only what needs it.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stages.commands.parallel.bound import bound
from stages.commands.parallel.lock import RUNNER, held
from stages.lib import paths
from stages.lib.entry import guarded

if TYPE_CHECKING:
    from stages.lib.settings import RuntimeParams

GPUS = Path("/proc/driver/nvidia/gpus")
# in CUDA_VISIBLE_DEVICES
NO_GPU = ("", "-1", "none", "NoDevFiles")


def main() -> None:
    """Parse the command line and do what it says."""
    asked = parsed(sys.argv[1:])
    # the run in an experiment has its lock
    with nullcontext() if asked.proven_by_dvc else held(RUNNER):
        code = (_run_experiment if asked.settings else _run_all)(asked)
    if code:
        sys.exit(code)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The request on the command line."""
    parser = _parser()
    asked = parser.parse_args(words)
    if asked.name and not asked.settings:
        parser.error("--name is of an experiment, which changes a setting (-S KEY=VALUE)")
    if asked.scheduler and (asked.memory or asked.gpus is not None):
        parser.error(
            "--memory and --gpus are of this machine; a worker of a cluster says itself what it offers (--resources)"
        )
    return asked


def _target(text: str) -> str:
    """A target with its file as the project names it, however it was written."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name")
    file, colon, stage = text.partition(":")
    return (os.path.relpath(file) if file.endswith(paths.PIPELINE.suffix) else file) + colon + stage


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.parallel", description="dvc repro with several stages at once."
    )
    parser.add_argument(
        "targets",
        nargs="*",
        type=_target,
        default=[str(paths.PIPELINE)],
        help="stages or dvc.yaml files, as `dvc repro` takes them",
    )
    parser.add_argument(
        "--workers",
        type=count,
        help="stages at once, as many as the cores allow if it is left out; of a cluster, those to wait for",
    )
    parser.add_argument(
        "--memory", type=count, help="MiB for all stages together; runtime.resources.memory_mib if it is left out"
    )
    parser.add_argument(
        "--gpus",
        type=lambda text: count(text, 0),
        help="GPUs, of which each stage with a model has one; runtime.resources.gpus if it is left out",
    )
    parser.add_argument("--scheduler", help="address of a scheduler of Dask, whose workers are in clones of their own")
    parser.add_argument(
        "-S",
        "--set-param",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="changes a setting, and keeps the run as an experiment, as `dvc exp run` does; more than once for several",
    )
    parser.add_argument("-n", "--name", help="of the experiment; DVC finds one if it is left out")
    parser.add_argument("--proven-by-dvc", action="store_true", help=argparse.SUPPRESS)
    return parser


def workers_for(threads: int, processes: int = 1) -> int:
    """Stages at once that have the cores for it; one where torch chooses the threads, as its last digits hang on them."""
    return max(1, cores() // (threads * processes)) if threads else 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def count(text: str, least: int = 1) -> int:
    """A number of the command line; raises ArgumentTypeError unless it is whole and at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def _run_all(asked: argparse.Namespace) -> int:
    from stages.commands.parallel.tasks import find_tasks
    from stages.commands.plan.costs import Costs, measure_slowness
    from stages.commands.plan.format import line
    from stages.workflow.settings import checked, read_files, with_localizers

    pipelines = _pipelines_of(asked.targets)
    values, left_out = checked(read_files(pipelines))
    runtime = values["runtime"]
    asked.workers = asked.workers or (1 if asked.scheduler else workers_for(runtime.threads, runtime.processes))
    costs = Costs(with_localizers(values), measure_slowness(runtime.threads))
    steps, tasks = find_tasks(asked.targets, costs, runtime.processes)
    print(*left_out, line(steps, costs), sep="\n", flush=True)
    if not tasks:
        return 0
    # Dask, which takes its time to import
    from stages.commands.parallel.cluster import side_by_side

    forks = sum(task.processes > 0 and not task.is_cached for task in tasks) > asked.workers
    with _on_cluster(asked, tasks) if asked.scheduler else on_this_machine(asked, runtime, forks) as (client, runner):
        # what this clone has in its cache it has shared by now, and what no run cache keeps it has to make itself
        chosen = [task for task in tasks if not runner.state or (task.is_kept and not task.is_cached)]
        failed = side_by_side(chosen, client, runner)
    here = {task.target for task in tasks if not task.is_kept}
    failed = failed or (_take_over(asked.targets, here) if asked.scheduler else 0)
    return failed if asked.proven_by_dvc else failed or _nothing_is_left(asked.targets)


def _pipelines_of(targets: Sequence[str]) -> list[str]:
    """The pipelines that targets are of, and the main one."""
    files = [Path(target.partition(":")[0]) for target in targets]
    return ["", *dict.fromkeys(file.parent.name for file in files if file in paths.PIPELINES.glob("*/dvc.yaml"))]


def _run_experiment(asked: argparse.Namespace) -> int:
    from stages.commands.parallel.experiment import run_experiment
    from stages.commands.profile import overridden
    from stages.workflow.settings import checked, read_files

    # before DVC changes anything: the runner would refuse a wrong one only then
    with overridden(asked.settings) as folder:
        values, _ = checked(read_files(_pipelines_of(asked.targets), folder))
    own = {"workers": asked.workers, "memory": asked.memory, "gpus": asked.gpus, "scheduler": asked.scheduler}
    words = ["--proven-by-dvc", *(f"--{option}={value}" for option, value in own.items() if value is not None)]
    # the main pipeline is what DVC takes anyway; named, it would be looked up stage by stage
    targets = [target for target in asked.targets if target != str(paths.PIPELINE)]
    # libraries are imported while DVC and the plan look at what there is to do
    with _shared_server({}, bool(values["runtime"].threads) and not asked.scheduler) as server:
        return run_experiment(asked.settings, asked.name, words, targets, server)


@contextmanager
def on_this_machine(
    asked: argparse.Namespace, runtime: "RuntimeParams", forks: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Dask on what the command line, the settings or else the machine say that there is; and what its stages share.

    With `forks` they start from a process that has imported what they need.
    """
    import psutil

    from stages.commands.parallel.cluster import this_machine
    from stages.commands.parallel.run_stage import DVC, Runner
    from stages.lib.forks import ADDRESS, fork_server, waiting

    resources = runtime.resources
    memory = asked.memory or resources.memory_mib or psutil.virtual_memory().available / 2**20
    wanted = resources.gpus if asked.gpus is None else asked.gpus
    gpus = [] if runtime.device == "cpu" else visible_gpus(wanted)
    # a number in the settings holds wherever a stage runs; without one the cores are shared out
    threads = {} if runtime.threads else {"OMP_NUM_THREADS": str(max(1, cores() // asked.workers))}
    forbidden = os.environ.get(ADDRESS) == ""
    with (
        nullcontext({}) if forbidden else fork_server({}, DVC) as dvc,
        _shared_server(threads, forks) as server,
        this_machine(asked.workers, memory, gpus) as client,
    ):
        yield client, Runner(uuid4().hex, threads | server, forks=waiting(dvc).get(ADDRESS, ""))


def _shared_server(environment: dict[str, str], wanted: bool) -> AbstractContextManager[dict[str, str]]:
    """The environment by which stages find a fork server: the one that is there already, or else a new one if it is wanted."""
    from stages.lib.forks import ADDRESS, fork_server

    if ADDRESS in os.environ:
        return nullcontext({ADDRESS: os.environ[ADDRESS]})
    return fork_server(environment) if wanted else nullcontext({})


@contextmanager
def _on_cluster(asked: argparse.Namespace, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    from stages.commands.parallel.clone import state
    from stages.commands.parallel.cluster import cluster_at
    from stages.commands.parallel.in_clone import share
    from stages.commands.parallel.run_stage import Runner

    head = state()
    with cluster_at(asked.scheduler, asked.workers, head) as client:
        if cached := [task.target for task in tasks if task.is_cached]:
            _dvc("repro", "--single-item", *cached)
        share(asked.targets)
        yield client, Runner(uuid4().hex, {}, head)


def visible_gpus(wanted: int | None) -> list[str]:
    """GPUs to lend, as CUDA_VISIBLE_DEVICES names them: those that this process may see, or else so many as are wanted or there."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(len([*GPUS.glob("*")]) if wanted is None else wanted)]
    if seen is None:
        return names
    # as CUDA does: nothing from the first one on that names none
    named = takewhile(lambda name: name not in NO_GPU, map(str.strip, seen.split(",")))
    return [*named][:wanted]


def _take_over(targets: Sequence[str], here: set[str]) -> int:
    """Bring what the workers made here, and run what has to run here; says what did although it hadn't to."""
    from stages.commands.parallel.clone import has_remote

    done = _dvc("repro", *["--pull"] * has_remote(), *targets)
    if done.returncode:
        print(done.stdout)
    elif ran := {*re.findall(r"^Running stage '(.*)'", done.stdout, re.MULTILINE)} - here:
        print(f"ran here, as the run cache did not have them: {', '.join(sorted(ran))}")
    return done.returncode


def _nothing_is_left(targets: Sequence[str]) -> int:
    """A plain `dvc repro`, shown where it finds something to do after all; gives its exit code."""
    proof = _dvc("repro", *targets)
    found = proof.returncode or "Running stage" in proof.stdout
    print(proof.stdout if found else "`dvc repro` finds nothing more to do")
    return proof.returncode


def _dvc(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        bound(["dvc", *words]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    guarded("parallel", main)
