"""run: `dvc repro` with stages that need nothing of each other side by side.

python -m stages.workflow.run                                     the main pipeline, on all cores
python -m stages.workflow.run stages/study/dvc.yaml               targets as `dvc repro` takes them
python -m stages.workflow.run --all-pipelines --workers 4         no more at once
python -m stages.workflow.run -S graft.sparsity=0.0005            as an experiment of DVC, like `dvc exp run`
python -m stages.workflow.run --scheduler tcp://10.0.0.1:8786     on a cluster whose workers share this folder

A failed stage stops only what needs it, and is reported at the end.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.errors import ParamsError, did_you_mean

if TYPE_CHECKING:  # each fork of a stage imports this module anew
    from dvc.repo import Repo
    from dvc.stage import Stage

    from stages.workflow.dispatch import Commands, Job
    from stages.workflow.repro import Repro

GPUS = Path("/proc/driver/nvidia/gpus")
NO_GPU = ("", "-1", "none", "NoDevFiles")  # in CUDA_VISIBLE_DEVICES


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.run", description="dvc repro, several stages at once.")
    add = parser.add_argument
    add("targets", nargs="*", default=[str(paths.PIPELINE)], help="stages or files, as `dvc repro` takes them")
    add("--all-pipelines", action="store_true", help="every dvc.yaml")
    add("--workers", type=_count, help="stages at once, if not as many as the cores allow; of a cluster, those to wait for")
    add("--memory", type=_count, help="MiB for all stages together, if not runtime.resources.memory_mib")
    add("--gpus", type=_count, help="GPUs, if not runtime.resources.gpus")
    add("--scheduler", metavar="ADDRESS", help="a scheduler of Dask, whose workers stand in this folder")
    told = "changes a setting and keeps the run as an experiment, as `dvc exp run` does; more than once for several"
    add("-S", "--set-param", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=told)
    add("-n", "--name", help="of the experiment")
    asked = parser.parse_args()
    if asked.name and not asked.settings:
        parser.error("--name is of an experiment, which changes a setting (-S KEY=VALUE)")
    if asked.scheduler and (asked.memory or asked.gpus is not None):
        parser.error("--memory and --gpus are of this machine; a worker says itself what it offers (--resources)")
    targets = None if asked.all_pipelines else asked.targets

    from stages.workflow.repro import repository

    with repository() as repo:
        if asked.settings:
            change_settings(asked.settings, targets)
        failed = _run(repo, targets, asked)
        if asked.settings and not failed:
            revision = repo.experiments.save(targets=targets, name=asked.name)
            print(f"kept as an experiment, {revision[:7]}: `dvc exp show`")
    sys.exit(failed)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def check_settings(targets: Sequence[str] | None, keys: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """The checked settings, those of these targets' pipelines and with these keys among them, and a line on each section left out."""
    from stages.lib.params import PIPELINES, checked, sections_of
    from stages.lib.yaml12 import load_yaml

    folders = [Path(target.partition(":")[0]).parent.name for target in targets or ()]
    pipelines = [name for name in PIPELINES if targets is None or name in folders]
    asked = [*sections_of(pipelines), *(key.partition(".")[0] for key in keys)]
    return checked(load_yaml(paths.PARAMS, ParamsError), asked=asked)


def change_settings(settings: Sequence[str], targets: Sequence[str] | None) -> None:
    """Change settings, each KEY=VALUE as `dvc exp run -S` takes it; raises ParamsError, with nothing changed, if one is wrong."""
    from dvc.utils.cli_parse import to_path_overrides
    from dvc.utils.hydra import apply_overrides

    before = {file: Path(file).read_text(encoding="utf-8") for file in to_path_overrides(settings)}
    keys = [setting.partition("=")[0].rpartition(":")[2].lstrip("+~") for setting in settings]
    try:
        for setting, key in zip(settings, keys, strict=True):
            [(file, override)] = to_path_overrides([setting]).items()
            try:
                apply_overrides(file, override)
            except Exception:  # of DVC, and of Hydra, OmegaConf and ruamel.yaml what slips through it
                near = did_you_mean(key, _keys(before[file]))
                raise ParamsError(f"-S {setting}: DVC can't set this{near}; KEY=VALUE is wanted") from None
        check_settings(targets, keys)
    except ParamsError:
        for file, text in before.items():
            Path(file).write_text(text, encoding="utf-8")
        raise


def _keys(text: str) -> list[str]:
    from stages.lib.report.differences import flat
    from stages.lib.yaml12 import parse_yaml

    return [*flat(parse_yaml(text, paths.PARAMS.name, ParamsError))]


def _run(repo: "Repo", targets: Sequence[str] | None, asked: argparse.Namespace) -> int:
    """Run what has to run; gives 1 if something failed."""
    values, left_out = check_settings(targets)
    print(*left_out, sep="\n", end="\n" * bool(left_out))

    from stages.workflow.repro import Repro, with_readable_locks

    repro = with_readable_locks(lambda: Repro(repo, targets))
    try:
        if first := repro.begin():
            _side_by_side(repro, first, values["runtime"], asked)
        elif not repro.failed:
            print(f"Nothing to run: {len(repro.steps)} stages are as they should be.")
    finally:
        repro.close()
    for stage, why in repro.failed.items():
        print(f"\n{stage.addressing} failed:\n{why.strip()}", file=sys.stderr)
    if waiting := ", ".join(stage.addressing for stage in repro.held_back()):
        print(f"\nnot started, as they need what failed: {waiting}", file=sys.stderr)
    return int(bool(repro.failed))


def _side_by_side(repro: "Repro", stages: list["Stage"], runtime: Any, asked: argparse.Namespace) -> None:
    """Run these stages' commands and all that can start after them; raises KeyboardInterrupt once all were stopped."""
    import psutil

    from stages.workflow.dispatch import Commands, cluster_at, this_machine
    from stages.workflow.plan import last_runs
    from stages.workflow.repro import is_kept

    workers, resources, known = asked.workers or workers_for(runtime, asked.scheduler), runtime.resources, last_runs()
    memory = asked.memory or resources.memory_mib or psutil.virtual_memory().available / 2**20
    gpus = [] if runtime.device == "cpu" else visible_gpus(asked.gpus or resources.gpus) * resources.stages_per_gpu
    if not runtime.threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    ways = ways_to_the_end(repro, {name: seconds for name, (seconds, _) in known.items()})
    with (
        cluster_at(asked.scheduler, workers) if asked.scheduler else this_machine(workers, memory, gpus) as client,
        _display(len(repro.steps)) as show,
    ):
        commands = Commands(client, lends=bool(gpus) and not asked.scheduler)
        with commands.stoppable():
            while stages or commands.running:
                for stage in stages:
                    _, mib = known.get(stage.name, (0.0, 0.0))
                    commands.start(stage, _job(stage, mib or memory / workers), ways[stage], repro.hash_outputs)
                show(repro.finished, commands)
                stage, outcome = commands.next()
                repro.end(stage, outcome.printed or f"exit code {outcome.code}" if outcome.code else None)
                said = "failed" if stage in repro.failed else "done"
                show(repro.finished, commands, f"{said} {stage.addressing} ({outcome.seconds:.1f} s)")
                if not outcome.code and not is_kept(stage):  # a report
                    show(repro.finished, commands, outcome.printed.rstrip())
                stages = repro.begin()


def ways_to_the_end(repro: "Repro", seconds: Mapping[str, float]) -> dict["Stage", float]:
    """Seconds from the start of each stage until the last that needs it is done; what ran never counts as a second."""
    ways: dict[Stage, float] = {}
    for stage in reversed(repro.steps):
        later = [ways[other] for other in repro.graph.predecessors(stage) if other in ways]
        ways[stage] = seconds.get(stage.name, 1.0) + max(later, default=0.0)
    return ways


def _job(stage: "Stage", memory: float) -> "Job":
    from stages.workflow.dispatch import Job

    asks_for = {key for dep in stage.deps for key in getattr(dep, "params", [])}
    command = stage.cmd if isinstance(stage.cmd, str) else " && ".join(stage.cmd)
    on_gpu = not asks_for.isdisjoint({"runtime", "runtime.device"})
    environment = {"DVC_STAGE": stage.addressing}
    return Job(stage.addressing, command, os.path.relpath(stage.wdir), environment, memory, on_gpu)


@contextmanager
def _display(total: int) -> Iterator[Callable[..., None]]:
    """A bar over all stages, with those that run, where there is a terminal; lines that stay above it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(highlight=False, markup=False, force_terminal=sys.stdout.isatty())
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def show(finished: int, commands: "Commands", line: str = "") -> None:
            running = ", ".join(stage.addressing for stage in commands.running.values())
            bar.update(task, completed=finished, description=running)
            if line:
                console.print(line, soft_wrap=True)

        yield show


def workers_for(runtime: Any, scheduler: str | None = None) -> int:
    """Stages at once for which there are cores; one where torch chooses the threads, which its last digits depend on."""
    return max(1, cores() // runtime.threads) if runtime.threads and not scheduler else 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def visible_gpus(wanted: int | None) -> list[str]:
    """GPUs as CUDA_VISIBLE_DEVICES names them: those that this process may see, or else as many as are wanted or there."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return [str(number) for number in range(len([*GPUS.glob("*")]) if wanted is None else wanted)]
    # as CUDA does: nothing from the first one on that names none
    return [*takewhile(lambda name: name not in NO_GPU, map(str.strip, seen.split(",")))][:wanted]


if __name__ == "__main__":
    guarded("run", main)
