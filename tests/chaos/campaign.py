"""Runs a check on thousands of cases that Hypothesis draws, and makes one that fails as small as it can."""

import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import randoms

from stages.lib.errors import GraftError
from stages.lib.progress import progress

SLOWEST = 20  # seconds
# makes a case in a folder from what it draws, and has the project read it
Check = Callable[[random.Random, Path], None]
# check, cases, failures
Row = tuple[str, int, list[str]]


def examine(name: str, check: Check, cases: int, number: int) -> Row:
    """The outcome of so many cases of a check; the same ones for the same `number`.

    A case is refused in clear lines (GraftError), or passes; of those that do neither, each different one is told once.
    """
    tried = 0
    with TemporaryDirectory(prefix="chaos") as folder, progress(name, cases, "case") as bar:

        @seed(number)
        @settings(max_examples=cases, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(randoms(use_true_random=False))
        def run(chance: random.Random) -> None:
            nonlocal tried
            tried += 1
            bar.update(1)
            put_to_the_test(check, chance, Path(folder))

        try:
            run()
        except ExceptionGroup as several:
            return name, tried, [_told(error) for error in several.exceptions]
        except Exception as error:
            return name, tried, [_told(error)]
    return name, tried, []


def put_to_the_test(check: Check, chance: random.Random, folder: Path) -> None:
    """Run a check once; raises whatever is no refusal in clear lines, and takes at most SLOWEST seconds."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SLOWEST)
    try:
        check(chance, folder)
    except GraftError as error:
        assert str(error).strip(), "refused without a word"
    finally:
        signal.alarm(0)


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SLOWEST} seconds")


def _told(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({Path(place.filename).name}, line {place.lineno})"
