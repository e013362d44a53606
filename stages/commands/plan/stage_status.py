"""The fate of a stage in the next run, and its reasons."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

RUNS, CACHED, UNCHANGED = "runs", "cached", "unchanged"


@dataclass(frozen=True)
class Step:
    """The fate of one stage in the next run, and its reasons.

    runs: its command is executed.  cached: its outputs come back from an earlier run with the same
    inputs.  unchanged: nothing.  A stage that runs because an earlier one does may turn out to be
    unchanged or cached, where that one makes what it made before.
    """

    name: str
    fate: Literal["runs", "cached", "unchanged"]
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Its name without the cell."""
        return self.name.partition("@")[0]


def keeps_model(steps: Iterable[Step]) -> bool:
    """True if the pretrained model that is here is the one that they use."""
    return any(step.name == "model" and step.fate == UNCHANGED for step in steps)
