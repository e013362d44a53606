"""The display of a run on a terminal: a line for each stage that runs, and a bar over all with the time left."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from stages.commands.parallel.run_stage import Outcome
from stages.commands.parallel.tasks import Task

WIDTH = 40


class Board:
    """Which stages run and which are done; times by what the plan says of each."""

    def __init__(self, tasks: Sequence[Task], at_once: int) -> None:
        self._plan = {task.name: task.seconds for task in tasks}
        self._at_once, self._start = at_once, time.monotonic()
        self._running: dict[str, float] = {}
        self._finished: set[str] = set()

    def begin(self, stage: str) -> None:
        """A stage starts, or, where its worker died, starts again."""
        if stage not in self._finished:
            self._running[stage] = time.monotonic()

    def end(self, outcome: Outcome) -> None:
        """A stage has ended, or will never start."""
        self._finished.add(outcome.stage)
        self._running.pop(outcome.stage, None)

    def __rich__(self) -> Group:
        now, stages = time.monotonic(), Table.grid(padding=(0, 2))
        running = [*self._running.items()]
        for stage, start in running:
            planned = f"of about {_clock(self._plan[stage])}" if self._plan[stage] else ""
            stages.add_row(stage, _clock(now - start), planned)
        finished = [*self._finished]
        done = sum(self._plan[stage] for stage in finished)
        done += sum(min(now - start, self._plan[stage]) for stage, start in running)
        whole = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=sum(self._plan.values()) or None, completed=done, width=WIDTH)
        whole.add_row(bar, f"{len(finished)} of {len(self._plan)} stages", self._left(done, now))
        return Group(stages, whole)

    def _left(self, done: float, now: float) -> str:
        """The rest of the plan at the pace so far; before anything is done, at that of so many stages at once."""
        rest, passed = sum(self._plan.values()) - done, now - self._start
        pace = done / passed if self._finished and done else self._at_once
        return f"about {_clock(rest / pace)} left" if rest else ""


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def watched(board: Board, console: Console) -> Iterator[None]:
    """Draw the board as long as this lasts, if there is a terminal to draw on."""
    with Live(board, console=console, transient=True, refresh_per_second=2) if console.is_terminal else nullcontext():
        yield


def told(outcome: Outcome) -> str:
    """The line that stays of a stage."""
    return f"{'failed' if outcome.code else 'done'} {outcome.stage} ({outcome.seconds:.1f} s)"


def printed_by_stage(text: str) -> str:
    """The lines that a stage itself printed, of all that a `dvc repro` of it did."""
    _, _, after_command = text.partition("\n> ")
    return after_command.partition("\n")[2].partition("\nUpdating lock file")[0].strip()
