"""Time, disk and memory of a run, estimated from the default run's (costs.yaml of each pipeline).

It is an estimate: it knows how the cost of a stage grows with a few settings and with the model, and how
fast this machine multiplies matrices beside the measured one, and in which precision; not how long the texts are, and nothing
of GPUs.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from time import thread_time
from typing import Any

from stages.commands.page.results import data_files
from stages.commands.plan.cost_factors import BYTES, amounts
from stages.commands.plan.stage_status import RUNS, Step
from stages.lib.localizers.names import NAMES, localizer_in
from stages.workflow.settings import PIPELINES

FILE = "costs.yaml"
# one copy in the workspace, one in DVC's cache
COPIES = 2
SIDE, PRODUCTS, TRIES = 64, 2000, 5
# more of them hardly help with batches of this size
MOST_CORES = 8


@dataclass(frozen=True)
class Estimate:
    """The cost of the stages that run, together, and which of them nobody has measured."""

    minutes: float
    disk_mb: float
    memory_mib: float
    unmeasured: tuple[str, ...]


class Costs:
    """Costs of single stages under these settings, on a machine that is `slowness` times slower than the measured one."""

    def __init__(self, values: dict[str, Any], slowness: float) -> None:
        # without those whose settings are wrong: nobody has asked for them, or would have been told
        files = {name: file for name, file in data_files(FILE).items() if {*PIPELINES[name].SECTIONS} <= {*values}}
        self._rows, self._before = (
            {key: value for file in files.values() for key, value in file[part].items()}
            for part in ("stages", "measured_with")
        )
        self._base = files[""]["base_memory"]
        self._now = amounts(values, [*self._before], files[""]["models"])
        self._slowness, self._localizer = slowness, values["graft"].localizer

    def seconds(self, name: str) -> float | None:
        """Of one stage, by its name with the cell; None if it was never measured."""
        row = self._row(name)
        return None if row is None else row["start"] + self._slowness * self._grown(row.get("seconds"))

    def disk(self, name: str) -> float:
        """MB of its outputs, those of the cache too."""
        return COPIES * self._grown((self._row(name) or {}).get("disk"))

    def memory(self, name: str) -> float:
        """MiB at most: as it was measured, or by what the localizer is known to make, if that is more."""
        over = (self._row(name) or {"memory": 0})["memory"] - self._base
        return self._base + max(max(over, 0) * self._ratio("parameters"), self._arrays(name))

    def _arrays(self, name: str) -> float:
        """MiB of a live model, both sets of the region's values, and the arrays that a stage's localizer makes."""
        stage, _, cell = name.partition("@")
        localizer = localizer_in(cell.partition("-")[0]) if stage != "mask" else self._localizer
        if localizer not in NAMES:
            return 0.0
        from stages.lib.localizers.registry import localizer_of

        numbers = self._now["parameters"] + (2 + localizer_of(localizer).arrays) * self._now["layers"]
        return BYTES * numbers / 2**20

    def total(self, steps: Iterable[Step]) -> Estimate:
        """Of all stages that run, one after another."""
        names = [step.name for step in steps if step.fate == RUNS]
        known = [name for name in names if self._row(name)]
        unknown = dict.fromkeys(name.partition("@")[0] for name in names if not self._row(name))
        return Estimate(
            sum(self.seconds(name) for name in known) / 60,
            sum(self.disk(name) for name in known),
            max((self.memory(name) for name in known), default=0),
            (*unknown,),
        )

    def _row(self, name: str) -> dict[str, Any] | None:
        fitting = [key for key in self._rows if name == key or name.startswith(_beginnings(key))]
        return self._rows[max(fitting, key=len)] if fitting else None

    def _grown(self, cost: dict[str, Any] | None) -> float:
        return cost["size"] * prod(map(self._ratio, cost.get("with", []))) if cost else 0.0

    def _ratio(self, amount: str) -> float:
        return self._now[amount] / self._before[amount]


def _beginnings(key: str) -> tuple[str, ...]:
    """The beginning of the names of stages that a row is for; one that ends in _ is for all that go on from there."""
    return (key,) if key.endswith("_") else (f"{key}@", f"{key}-")


def measure_slowness(threads: int) -> float:
    """The factor by which this machine is slower than the measured one, on so many of its cores; 0 for all it may use.

    Small matrices keep the product on one core, and processor time leaves out what other programs take.
    """
    import numpy as np

    matrix = np.random.default_rng(0).random((SIDE, SIDE), dtype=np.float32)
    times = []
    for _ in range(TRIES):
        start = thread_time()
        for _ in range(PRODUCTS):
            matrix @ matrix
        times.append(thread_time() - start)
    measured = data_files(FILE)[""]
    cores = min(threads or MOST_CORES, len(os.sched_getaffinity(0)), MOST_CORES)
    return min(times) / measured["products"] * measured["cores"] / cores
