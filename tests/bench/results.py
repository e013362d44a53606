"""The result of a measurement: a ratio of two things that took turns in one run, so that a busy machine slows both."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """A measured number; `most` or `least` is the goal, if there is one."""

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None

    @property
    def goal(self) -> str:
        """The goal in words, and whether it is met."""
        if self.most is None and self.least is None:
            return ""
        limit, word = (self.most, "at most") if self.least is None else (self.least, "at least")
        return f"{word} {limit:g}: {'met' if self.met else 'MISSED'}"

    @property
    def met(self) -> bool:
        """True if it is within its goal; a number without one always is."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)


def in_turns(rounds: int, **functions: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each function, A B A B ..., after each has run once to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if turn:
                taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def machine() -> dict[str, Any]:
    """The circumstances of the numbers: processor, cores, versions."""
    import psutil
    import torch
    import transformers

    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "transformers": transformers.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
