"""Loops that may go on where a killed run left them: a training, or the learning of a mask, asks for its `loop`.

In a notebook nothing is kept; a stage of the pipeline has a keeper (stages/workflow/core/resume.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class State:
    """A loop after a step: tensors and numbers (what JSON knows) by name; `finished` if no step is left."""

    step: int
    tensors: "dict[str, Tensor]"
    facts: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    def part(self, name: str) -> "dict[str, Tensor]":
        """The tensors whose names begin with `name/`, without that."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


# each gives, for a number of steps, what keeps a loop; the last one is asked
KEEPERS: list[Callable[[int], Any]] = []


def loop(steps: int) -> Any:
    """What keeps the loop of so many steps that starts now (resume.KeptLoop), or None."""
    return KEEPERS[-1](steps) if KEEPERS else None
