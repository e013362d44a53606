"""What a method costs: passes, seconds, memory and bytes."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

FLOAT_BYTES = INDEX_BYTES = 4
# numbers that an optimizer keeps for each parameter, without and with momentum
STATES = {"adamw": (2, 2), "sgd": (0, 1)}


class Stopwatch:
    """Seconds spent in `running` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of this block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has used so far, on its GPU if it has one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def optimizer_bytes(optimizer: str, momentum: float, trained: int) -> int:
    """State of an optimizer that knows `trained` parameters and nothing else."""
    return STATES[optimizer][momentum > 0] * FLOAT_BYTES * trained


def checkpoint_bytes(selected: int, graftable: int) -> int:
    """What has to be stored: an index and a value for each parameter, or the values alone of a whole region."""
    return FLOAT_BYTES * graftable if selected == graftable else (INDEX_BYTES + FLOAT_BYTES) * selected
