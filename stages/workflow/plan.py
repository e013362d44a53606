"""plan: which stages `dvc repro` would run, why, and how long each took the last time on this machine.

python -m stages.workflow.plan                    the main pipeline
python -m stages.workflow.plan study              another pipeline, with what it needs of the main one
python -m stages.workflow.plan study --stages     every single stage

Nothing is executed or fetched.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skill_grafting.command import guarded
from skill_grafting.errors import ParamsError, did_you_mean
from stages.workflow.core import paths
from stages.workflow.core.stage import last_runs

if TYPE_CHECKING:
    from dvc.stage import Stage
    from rich.table import Table


@dataclass(frozen=True)
class Step:
    """A stage and why `dvc repro` would look at it again; no reasons if nothing has changed.

    A stage after one with reasons has a reason, too, though it need not run if its inputs turn out the same.
    """

    name: str
    reasons: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Its name without the cell."""
        return self.name.partition("@")[0]


def steps_of(targets: Sequence[str]) -> list[Step]:
    """The stages of `dvc repro TARGETS` in an order in which they may run; raises StorageError if DVC can't read them."""
    from stages.workflow.repro import Repro, repository, with_readable_notes

    with repository() as repo:
        repro = with_readable_notes(repo, lambda: Repro(repo, targets))
        due: dict[Stage, Step] = {}
        for stage in repro.steps:
            makers = [other for other in repro.graph.successors(stage) if due[other].reasons]
            reasons = [*_changes(stage), *(f"after {other.name}" for other in makers)]
            due[stage] = Step(stage.name, tuple(dict.fromkeys(reasons)))
        return [*due.values()]


def _changes(stage: "Stage") -> list[str]:
    """DVC's own status of a stage, a line for each change: a setting by its name, a file with what happened to it."""
    if not any(out.hash_info for out in stage.outs):
        return ["not run yet"]
    lines: list[str] = []
    for entry in stage.status().get(stage.addressing, []):
        if isinstance(entry, str):
            lines.append(entry)
            continue
        for place, state in (item for changes in entry.values() for item in changes.items()):
            states = state.items() if isinstance(state, dict) else [(place, state)]
            # for DVC what the lock names was deleted, though this folder may never have had it
            lines += [f"{'missing' if how == 'deleted' else how} {name}" for name, how in states]
    return lines


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.plan", description="Say what a run would do.")
    parser.add_argument("pipelines", nargs="*", help="folders of stages with a dvc.yaml; none for the main pipeline")
    parser.add_argument("--stages", action="store_true", help="every single stage")
    asked = parser.parse_args()

    from rich.console import Console

    from stages.workflow.core.settings import PIPELINES
    from stages.workflow.run import check_settings

    known = [name for name in PIPELINES if name]
    if unknown := [name for name in asked.pipelines if name not in known]:
        raise ParamsError(f"{unknown[0]!r} is no pipeline{did_you_mean(unknown[0], known)}; known: {', '.join(known)}")
    targets = [f"{paths.PIPELINES}/{name}/{paths.PIPELINE}" for name in asked.pipelines] or [str(paths.PIPELINE)]
    _, left_out = check_settings(targets)
    sys.stdout.reconfigure(errors="replace")
    console, steps = Console(highlight=False), steps_of(targets)
    print(*left_out, sep="\n", end="\n" * bool(left_out))
    console.print(table(steps, asked.stages))
    print(line(steps))


def table(steps: Sequence[Step], single: bool) -> "Table":
    """One line for all cells of a stage, or for every `single` one."""
    from rich import box
    from rich.table import Table

    drawn, known, groups = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False), last_runs(), {}
    for title in ("stage", "to do", "of", "last time", "why"):
        drawn.add_column(
            title, justify="left" if title in ("stage", "why") else "right", overflow="fold", no_wrap=title == "stage"
        )
    for step in steps:
        groups.setdefault(step.name if single else step.stage, []).append(step)
    for name, group in groups.items():
        due = [step for step in group if step.reasons]
        seconds = [known[step.name][0] for step in due if step.name in known]
        took = f"{sum(seconds):.0f} s" if seconds else "?" if due else ""
        why = [
            *dict.fromkeys(reason if single else reason.partition("@")[0] for step in due for reason in step.reasons)
        ]
        more = "" if single or len(why) < 2 else f" and {len(why) - 1} more"
        drawn.add_row(name, str(len(due) or ""), str(len(group)), took, ", ".join(why if single else why[:1]) + more)
    return drawn


def line(steps: Sequence[Step]) -> str:
    """The stages that have something to do, and how long they took, in one line."""
    due, known = [step.name for step in steps if step.reasons], last_runs()
    if not due:
        return f"Nothing to run: {len(steps)} stages are up to date."
    seconds = [known[name][0] for name in due if name in known]
    took = f"{sum(seconds) / 60:.1f} minutes the last time" if seconds else "never run on this machine"
    new = f", without {len(due) - len(seconds)} that never ran here" if 0 < len(seconds) < len(due) else ""
    return f"{len(due)} of {len(steps)} stages to run, or to take from the cache: {took}{new}."


if __name__ == "__main__":
    guarded("plan", main)
