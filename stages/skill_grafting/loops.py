"""Loops that can resume after a kill: training and mask learning ask for their `loop`.

In a notebook nothing is kept; a stage of the pipeline has a keeper (stages/workflow/core/resume.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class State:
    """The state of a loop after a step: tensors and JSON values by name; `finished` if no step is left."""

    step: int
    tensors: "dict[str, Tensor]"
    facts: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    def part(self, name: str) -> "dict[str, Tensor]":
        """The tensors whose names begin with `name/`, without that."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


# each returns the keeper of a loop of so many steps; the last one is used
KEEPERS: list[Callable[[int], Any]] = []


def loop(steps: int) -> Any:
    """The keeper of a loop of so many steps that starts now (resume.KeptLoop), or None."""
    return KEEPERS[-1](steps) if KEEPERS else None
