"""What goes into a run of `localize`, and what comes out of it."""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from ..data.tasks import TaskSpec
from ..grafting.region import Region
from ..localizers.registry import Budget, FoundMask
from ..settings import Section
from .memory import PeakMemory
from .pair import Pair


@dataclass(frozen=True)
class LocalizeResult:
    """The mask, how the models score on test rows (variant -> measures), and lines on the rows."""

    mask: FoundMask
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LocalizeContext:
    """Everything that a localizer is run with; the request is what was asked for on the command line."""

    request: Namespace
    pair: Pair
    region: Region
    budget: Budget
    task: TaskSpec
    max_length: int
    settings: Section
    peak: PeakMemory
