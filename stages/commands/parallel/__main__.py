"""parallel: `dvc repro` with stages that need nothing of each other side by side.

python -m stages.commands.parallel --workers 2                         the main pipeline
python -m stages.commands.parallel stages/study/dvc.yaml               targets as `dvc repro` takes them
python -m stages.commands.parallel --workers 4 --memory 16000          no more at once than fit into so many MiB

Each stage that has something to do is a task of Dask, a `dvc repro` of that stage alone, in the order of DVC's own graph.  A
plain `dvc repro` at the end has to find nothing to do.  A failed stage stops only what needs it.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.errors import ParamsError

GPUS = Path("/proc/driver/nvidia/gpus")


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.parallel", description="dvc repro with several stages at once."
    )
    parser.add_argument(
        "targets", nargs="*", default=[str(paths.PIPELINE)], help="stages or dvc.yaml files, as `dvc repro` takes them"
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=count, default=cores, help=f"stages at once; {cores} if it is left out")
    parser.add_argument("--memory", type=count, help="MiB for all stages together; what is free if it is left out")
    parser.add_argument(
        "--gpus",
        type=lambda text: count(text, 0),
        default=len([*GPUS.glob("*")]),
        help="GPUs, of which a stage with a model has one",
    )
    asked = parser.parse_args()
    code = _run_all(asked)
    if code:
        sys.exit(code)


def count(text: str, least: int = 1) -> int:
    """A number of the command line; raises ArgumentTypeError unless it is whole and at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def _run_all(asked: argparse.Namespace) -> int:
    import psutil

    from stages.commands.parallel.cluster import GPU, MEMORY, side_by_side
    from stages.commands.parallel.tasks import find_tasks
    from stages.commands.plan.costs import Costs, measure_slowness
    from stages.lib.params import checked
    from stages.lib.yaml12 import load_yaml

    values, _ = checked(load_yaml(paths.PARAMS, ParamsError))
    runtime = values["runtime"]
    tasks = find_tasks(asked.targets, Costs(values, measure_slowness(runtime.threads)))
    gpus = 0 if runtime.device == "cpu" else asked.gpus
    memory = asked.memory or psutil.virtual_memory().available / 2**20
    # a number in the settings holds wherever a stage runs; without one the cores are shared out
    threads = {} if runtime.threads else {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // asked.workers))}
    failed = side_by_side(tasks, asked.workers, {MEMORY: memory, GPU: gpus}, threads)
    return failed or _nothing_is_left(asked.targets)


def _nothing_is_left(targets: Sequence[str]) -> int:
    """A plain `dvc repro`, shown where it finds something to do after all; gives its exit code."""
    proof = subprocess.run(["dvc", "repro", *targets], capture_output=True, text=True, check=False)
    if proof.returncode or "Running stage" in proof.stdout:
        print(proof.stdout + proof.stderr)
    else:
        print("`dvc repro` finds nothing more to do")
    return proof.returncode


if __name__ == "__main__":
    guarded("parallel", main)
