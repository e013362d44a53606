"""plan: which stages `dvc repro` would run, why, and how long each took the last time; nothing is executed or fetched.

python -m stages.workflow.plan                    the main pipeline
python -m stages.workflow.plan study              another pipeline, with what it needs of the main one
python -m stages.workflow.plan study --stages     every single stage
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import ParamsError, did_you_mean
from stages.workflow.preflight import check_settings
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import last_runs
from stages.workflow.stage.settings import PIPELINES


def reasons_of(targets: Sequence[str]) -> dict[str, list[str]]:
    """Each stage of `dvc repro TARGETS`, in order -> why it would look at it again; one that follows may yet find its inputs the same."""
    from stages.workflow.repro import Repro, repository, with_readable_notes

    with repository() as repo:
        repro = with_readable_notes(repo, lambda: Repro(repo, targets))
        found: dict[str, list[str]] = {}
        for stage in repro.steps:
            before = [other.name for other in repro.graph.successors(stage) if found[other.name]]
            found[stage.name] = [*dict.fromkeys([*_changes(stage), *(f"after {name}" for name in before)])]
        return found


def _changes(stage: Any) -> list[str]:
    """DVC's own status of a stage, a line for each change: a setting by its name, a file with what happened to it."""
    if not any(out.hash_info for out in stage.outs):
        return ["not run yet"]
    entries = stage.status().get(stage.addressing, [])
    lines = [entry for entry in entries if isinstance(entry, str)]
    for changes in (part for entry in entries if isinstance(entry, dict) for part in entry.values()):
        for place, state in changes.items():
            states = state.items() if isinstance(state, dict) else [(place, state)]
            # for DVC what the lock names was deleted, though this folder may never have had it
            lines += [f"{'missing' if how == 'deleted' else how} {name}" for name, how in states]
    return lines


def table(reasons: Mapping[str, list[str]], single: bool) -> Table:
    """One line for all cells of a stage, or for every `single` one."""
    drawn, known, groups = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False), last_runs(), {}
    for title in ("stage", "to do", "of", "last time", "why"):
        drawn.add_column(title, justify="left" if title in ("stage", "why") else "right", overflow="fold")
    for name in reasons:
        groups.setdefault(name if single else name.partition("@")[0], []).append(name)
    for group, names in groups.items():
        due = [name for name in names if reasons[name]]
        seconds = [known[name][0] for name in due if name in known]
        took = f"{sum(seconds):.0f} s" if seconds else "?" if due else ""
        why = [*dict.fromkeys(one if single else one.partition("@")[0] for name in due for one in reasons[name])]
        more = "" if single or len(why) < 2 else f" and {len(why) - 1} more"
        drawn.add_row(group, str(len(due) or ""), str(len(names)), took, ", ".join(why if single else why[:1]) + more)
    return drawn


def line(reasons: Mapping[str, list[str]]) -> str:
    """The stages that have something to do, and how long they took, in one line."""
    due, known = [name for name, why in reasons.items() if why], last_runs()
    if not due:
        return f"Nothing to run: {len(reasons)} stages are up to date."
    seconds = [known[name][0] for name in due if name in known]
    took = f"they took {sum(seconds) / 60:.1f} minutes the last time" if seconds else "none has run on this machine yet"
    new = f", not counting {len(due) - len(seconds)} that never ran here" if 0 < len(seconds) < len(due) else ""
    return f"{len(due)} of {len(reasons)} stages to run or to take from the cache; {took}{new}."


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.plan", description="Say what a run would do.")
    parser.add_argument("pipelines", nargs="*", help="such as study; default: the main pipeline")
    parser.add_argument("--stages", action="store_true", help="a line for every single stage")
    asked = parser.parse_args()
    known = [name for name in PIPELINES if name]
    if unknown := [name for name in asked.pipelines if name not in known]:
        raise ParamsError(f"{unknown[0]!r} is no pipeline{did_you_mean(unknown[0], known)}; known: {', '.join(known)}")
    targets = [f"{paths.PIPELINES}/{name}/{paths.PIPELINE}" for name in asked.pipelines] or [str(paths.PIPELINE)]
    _, left_out = check_settings(targets, localizers=True)
    sys.stdout.reconfigure(errors="replace")
    reasons = reasons_of(targets)
    print(*left_out, sep="\n", end="\n" * bool(left_out))
    Console(highlight=False).print(table(reasons, asked.stages))
    print(line(reasons))


if __name__ == "__main__":
    guarded("plan", main)
