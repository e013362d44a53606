"""run: `dvc repro` with independent stages side by side.

python -m stages.workflow.run                                     the main pipeline, on all cores
python -m stages.workflow.run stages/study/dvc.yaml               targets as `dvc repro` takes them
python -m stages.workflow.run stages/*/dvc.yaml --workers 4       every pipeline, at most four stages at once
python -m stages.workflow.run -S graft.sparsity=0.0005            as an experiment of DVC, like `dvc exp run`
python -m stages.workflow.run --scheduler tcp://10.0.0.1:8786     on a cluster whose workers share this folder
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import ParamsError
from stages.workflow.change import change_settings, put_back
from stages.workflow.preflight import check_settings
from stages.workflow.stage import paths

if TYPE_CHECKING:  # each fork of a stage imports this module anew
    from dvc.stage import Stage

    from stages.text.tasks.settings import RuntimeParams
    from stages.workflow.repro import Repro


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.workflow.run", description="dvc repro, several stages at once."
    )
    add = parser.add_argument
    add("targets", nargs="*", default=[str(paths.PIPELINE)], help="stages or files, as `dvc repro` takes them")
    add(
        "--workers",
        type=_count,
        help="stages at once (default: as the cores allow); on a cluster, workers to wait for",
    )
    add("--scheduler", metavar="ADDRESS", help="a scheduler of Dask, whose workers stand in this folder")
    help_text = (
        "changes a setting and keeps the run as an experiment, as `dvc exp run` does; more than once for several"
    )
    add("-S", "--set-param", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=help_text)
    add("-n", "--name", help="of the experiment")
    asked = parser.parse_args()
    if asked.name and not asked.settings:
        parser.error("--name names an experiment, which needs a changed setting (-S KEY=VALUE)")
    if asked.name:
        _require_new(asked.name)
    failed = _run(asked.targets, asked)
    if asked.settings and not failed:
        from dvc.repo import Repo

        with Repo() as repo:
            print("kept as an experiment:", repo.experiments.save(targets=asked.targets, name=asked.name)[:7])
    sys.exit(failed)


def _require_new(name: str) -> None:
    """Raise ParamsError unless an experiment can be kept under this name."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.repo.experiments.refs import ExpRefInfo
    from dvc.repo.experiments.utils import check_ref_format

    with Repo() as repo:
        place = ExpRefInfo(baseline_sha=repo.scm.get_rev(), name=name)
        try:
            check_ref_format(repo.scm, place)
        except DvcException as error:
            raise ParamsError(f"--name: {error}") from None
        if repo.scm.get_ref(str(place)):
            raise ParamsError(f"--name: there is an experiment {name}; take another, or `dvc exp remove {name}`")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _run(targets: Sequence[str], asked: argparse.Namespace) -> int:
    """Run the stages that are out of date; returns 1 if something failed, which is reported last."""
    from dvc.utils.cli_parse import to_path_overrides

    from stages.workflow.repro import Repro, repository, with_readable_notes

    with repository() as repo:  # settings change only under the lock: another run may still read them
        files = to_path_overrides(asked.settings)
        localizers = any("localizer." in one for one in asked.settings)
        before = change_settings(asked.settings, lambda: check_settings(targets, files, localizers))
        try:
            values, left_out = check_settings(targets)
            print(*left_out, sep="\n", end="\n" * bool(left_out), flush=True)
            repro = with_readable_notes(repo, lambda: Repro(repo, targets))
            try:
                if first := repro.begin():
                    check_settings(targets, localizers=repro.takes("localizer."))  # which a mask would, hours later
                    _side_by_side(repro, first, values["runtime"], asked)
                elif not repro.failed:
                    print(f"Nothing to run: {len(repro.steps)} stages are up to date.")
            finally:
                repro.write_locks()
        except BaseException:  # Ctrl-C, too
            put_back(before)
            raise
        if repro.failed:
            put_back(before)
    _tell_failures(repro, before)
    return int(bool(repro.failed))


def _tell_failures(repro: "Repro", before: dict[Path, str]) -> None:
    for stage, why in repro.failed.items():
        print(f"\n{stage.addressing} failed:\n{why.strip()}", file=sys.stderr)
    if waiting := ", ".join(stage.addressing for stage, others in repro.waits_for.items() if others):
        print(f"\nnot started, since they depend on failed stages: {waiting}", file=sys.stderr)
    if repro.failed and before:
        files = " and ".join(map(str, before))
        print(
            f"\n{files}: put back as before this experiment; the same command continues where it ended", file=sys.stderr
        )


def _side_by_side(repro: "Repro", stages: list["Stage"], runtime: "RuntimeParams", asked: argparse.Namespace) -> None:
    """Run these stages' commands and all that can start after them; raises KeyboardInterrupt once all are cancelled."""
    import psutil

    from skill_grafting.support.progress import progress
    from stages.workflow.dispatch import Commands, cluster_at, gpus_of, this_machine
    from stages.workflow.stage.decorator import last_runs

    workers, known = asked.workers or workers_for(runtime, asked.scheduler), last_runs()
    memory = runtime.resources.memory_mib or psutil.virtual_memory().available / 2**20
    gpus = [] if asked.scheduler else gpus_of(runtime)
    machine = cluster_at(asked.scheduler, workers) if asked.scheduler else this_machine(workers, memory, gpus)
    with machine as client, progress("run", len(repro.steps), "stage") as bar:
        commands = Commands(client, bool(gpus))
        with commands.stoppable():
            while stages or commands.running:
                for stage in stages:
                    _, mib = known.get(stage.name, (0.0, 0.0))
                    commands.start(stage, mib or memory / workers, repro.hash_outputs)
                bar.set_postfix_str(", ".join(stage.addressing for stage in commands.running.values()))
                bar.update(repro.finished - bar.n)
                stage, (code, printed, seconds) = commands.next()
                repro.end(stage, f"{printed}\n(exit code {code})" if code else None)
                outcome = "failed" if stage in repro.failed else "done"
                told = "" if code else f"\n{printed.strip()}".rstrip()
                count = f"{repro.finished} of {len(repro.steps)}"  # a bar is not drawn where output is piped
                bar.write(f"{outcome} {stage.addressing} ({seconds:.1f} s; {count}){told}")
                stages = repro.begin()


def workers_for(runtime: "RuntimeParams", scheduler: str | None = None) -> int:
    """How many stages the cores allow at once; one if torch chooses the number of threads, on which its last digits depend."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // runtime.threads) if runtime.threads and not scheduler else 1


if __name__ == "__main__":
    guarded("run", main)
