"""Stages side by side: how much sooner several workers are done, beside independent processes with the same cells."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.results import Row
from tests.dvc_project import TINY, Copy, make_original, twin

TASKS = ("movies", "products", "tweets", "domain")
# long enough for a stage to be more than its imports
SETTINGS: dict[str, Any] = TINY | {
    "tasks": [*TASKS],
    "data": {"k": 32, "test_max": 300},
    "finetune": {"max_steps": 200},
    "localizer": {"learned": {"steps": 20}},
    "ood": {"sets": {}},
}
WORKERS = (1, 2, 4)
UP_TO = "evaluate"


def measure() -> Iterator[Row]:
    """Seconds with so many workers, and the gain of two beside that of two processes that know nothing of each other."""
    with tempfile.TemporaryDirectory() as folder:
        original = make_original(Path(folder), SETTINGS)
        original.repro(*(f"sample@{task}-13" for task in TASKS))
        seconds = {}
        for workers in WORKERS:
            copy = twin(original, f"with_{workers}")
            words = ("python", "-m", "stages.workflow.run", UP_TO, "--workers", str(workers))
            seconds[workers] = copy.run(*words).seconds
            yield Row(f"default's cells with {workers} workers", seconds[workers], "s")
        halves = [twin(original, f"half_{number}") for number in range(2)]
        with ThreadPoolExecutor(2) as pool:
            apart = max(pool.map(_half, halves, (TASKS[:2], TASKS[2:])))
    yield Row("two processes apart, each with half of the cells", apart, "s")
    gain = seconds[1] / seconds[2]
    yield Row("one worker / two workers", gain, "times")
    yield Row("that gain / the gain of two processes apart", gain / (seconds[1] / apart), "times", least=0.9)


def _half(copy: Copy, tasks: tuple[str, ...]) -> float:
    return copy.repro(*(f"{UP_TO}@{task}-13" for task in tasks)).seconds
