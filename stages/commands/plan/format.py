"""A plan in words: a table, and one line that sums it up."""

import shutil
from collections.abc import Sequence

from rich import box
from rich.table import Table

from stages.commands.plan.costs import Costs
from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED, Step
from stages.lib.words import counted

HOUR = 60
LEAST = 0.1
MB_PER_GB = 1000
MIB_PER_GIB = 1024


def table(steps: Sequence[Step], costs: Costs) -> Table:
    """One line for all cells of a stage."""
    drawn = _empty("stage", RUNS, CACHED, UNCHANGED, "minutes", "why")
    for name in dict.fromkeys(step.stage for step in steps):
        group = [step for step in steps if step.stage == name]
        numbers = [sum(step.fate == fate for step in group) for fate in (RUNS, CACHED, UNCHANGED)]
        drawn.add_row(name, *(str(number or "") for number in numbers), _minutes(group, costs), _first(group))
    return drawn


def single_table(steps: Sequence[Step], costs: Costs) -> Table:
    """One line for each cell, with every reason."""
    drawn = _empty("stage", "what", "minutes", "why")
    for step in steps:
        drawn.add_row(step.name, step.fate, _minutes([step], costs), ", ".join(_why([step])))
    return drawn


def _empty(first: str, *others: str) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    drawn.add_column(first, no_wrap=True)
    for title in others:
        drawn.add_column(title, justify="left" if title in ("what", "why") else "right", overflow="fold")
    return drawn


def _minutes(group: Sequence[Step], costs: Costs) -> str:
    times = [costs.seconds(step.name) for step in group if step.fate == RUNS]
    if None in times:
        return "?"
    minutes = sum(times) / 60
    return "" if not times else f"{minutes:.1f}" if minutes >= LEAST else f"<{LEAST}"


def _why(group: Sequence[Step]) -> list[str]:
    """Why these run or come back."""
    missing = dict.fromkeys(path for step in group for path in step.missing)
    if missing:
        return [f"fails: there is no {', '.join(missing)}"]
    return [*dict.fromkeys(reason for step in group for reason in step.reasons)]


def _first(group: Sequence[Step]) -> str:
    """The first reason of a group, cells aside, and how many there are."""
    reasons = [*dict.fromkeys(reason.partition("@")[0] for reason in _why(group))]
    return ", ".join(reasons) if len(reasons) < 2 else f"{reasons[0]} and {len(reasons) - 1} more"


def line(steps: Sequence[Step], costs: Costs) -> str:
    """The stages that run and their cost, in one line."""
    running = [step for step in steps if step.fate == RUNS]
    numbers = {fate: sum(step.fate == fate for step in steps) for fate in (CACHED, UNCHANGED)}
    others = ", ".join(f"{number} {fate}" for fate, number in numbers.items() if number)
    if not running:
        return f"Nothing to run: {others}."
    total = costs.total(steps)
    missing = next((path for step in steps for path in step.missing), None)
    in_turn = " one after another" if len(running) > 1 else ""
    free = shutil.disk_usage(".").free / 1e6
    disk = _size(total.disk_mb, MB_PER_GB, "MB", "GB")
    room = f" (only {_size(free, MB_PER_GB, 'MB', 'GB')} free)" if free < total.disk_mb else ""
    parts = [
        f"{counted(len(running), 'stage')} to run{f' ({others})' if others else ''}: about {_duration(total.minutes)}{in_turn}",
        f"{disk} of disk{room}",
        f"{_size(total.memory_mib, MIB_PER_GIB, 'MiB', 'GiB')} of memory",
    ]
    notes = [f"never measured, and not in this: {', '.join(total.unmeasured)}"] if total.unmeasured else []
    notes += [f"it stops for lack of {missing}"] if missing else []
    return "; ".join([", ".join(parts), *notes]) + "."


def _duration(minutes: float) -> str:
    if minutes < 1.5:
        return "a minute"
    return f"{minutes:.0f} minutes" if minutes < 2 * HOUR else f"{minutes / HOUR:.1f} hours"


def _size(value: float, thousand: int, small: str, large: str) -> str:
    return f"{value / thousand:.1f} {large}" if value >= thousand else f"{value:.0f} {small}"
