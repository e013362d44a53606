"""The inputs of a run of `localize`, and the memory that it takes beside mapped files."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil

from ..data.tasks import TaskSpec
from ..grafting.region import Region
from ..localizers.evidence import LocalizerInput
from ..localizers.registry import Budget, FoundMask, Localizer
from ..metrics.variants import GRAFTED
from ..models.evidence import draws
from ..progress import progress
from .pair import Pair


class PeakMemory:
    """The most memory that this process had whenever it was measured, in bytes.

    Pages of mapped files don't count, since the system can take them back; where it reports no shared pages, they do.
    """

    def __init__(self) -> None:
        self.bytes, self._process = 0, psutil.Process()
        self.measure()

    def measure(self, *_: object) -> None:
        """Measure once more."""
        memory = self._process.memory_info()
        self.bytes = max(self.bytes, memory.rss - getattr(memory, "shared", 0))

    @contextmanager
    def progress(self, title: str, total: int | None, unit: str) -> Iterator[Callable[..., None]]:
        """A progress bar; gives a function that moves it, by a number or else by one, and measures."""
        with progress(title, total, unit) as bar:

            def step(number: object = 1) -> None:
                bar.update(number if isinstance(number, int) else 1)
                self.measure()

            yield step


@dataclass(frozen=True)
class LocalizeContext:
    """The inputs of a run: the options of the command line, and what follows from them; the smallest budget comes first."""

    request: Namespace
    pair: Pair
    region: Region
    budgets: list[Budget]
    task: TaskSpec
    max_length: int
    localizer: Localizer
    peak: PeakMemory

    def find_masks(self, evidence: LocalizerInput) -> list[FoundMask]:
        """The mask of each budget, as if it were the only one."""
        name, words = self.request.localizer, (self.task.name, self.request.seed)
        return self.localizer.find_all(lambda: replace(evidence, generator=draws(name, *words)), self.budgets)

    @property
    def graft_names(self) -> list[str]:
        """The variant of each budget's graft: of one alone its usual name, of several with its size."""
        return [GRAFTED] if len(self.budgets) == 1 else [f"{GRAFTED}_{budget.share:g}" for budget in self.budgets]
