"""Processes that share the gradients of a stage (data parallelism), through Accelerate.

All of them run the same stage.  Each takes its share of every batch and has the sum of all gradients afterwards, so that
their weights stay equal to the bit.  Only the first one writes and prints.  All draw the same random numbers: dropout drops
the same units of the first example of each.
"""

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from . import io
from .errors import ParamsError, ProcessError

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")


@dataclass(frozen=True)
class Processes:
    """The number of processes, and which of them this one is, counted from 0."""

    count: int = 1
    rank: int = 0

    def share(self, items: list[Item]) -> list[Item]:
        """Those that this process takes; where there are more processes than items, nothing for the last ones."""
        return items[self.rank :: self.count]

    def add_up(self, tensors: Iterable["Tensor"]) -> None:
        """Replace each tensor by its sum over all processes, each of which has to bring as many, of the same shapes.

        Raises ProcessError if one of them has ended.
        """
        if self.count == 1:
            return
        from accelerate.utils import reduce

        try:
            for tensor in tensors:
                tensor.copy_(reduce(tensor, "sum"))
        except RuntimeError as error:  # gloo's and NCCL's own words are pages long
            ended = f"one of the {self.count} processes that share the gradients has ended"
            raise ProcessError(f"{ended}; runtime.processes=1 would show why") from error

    def state(self) -> tuple[Any, ...]:
        """All that a result depends on."""
        return (self.count,)


ALONE = Processes()


def join(count: int, on_cpu: bool) -> Processes:
    """Wait until `count` processes run this stage; they are started here, unless `accelerate launch` has started all.

    Raises ParamsError if it has started another number.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched == count == 1:
        return ALONE
    if launched not in (1, count):
        there = f"{launched} processes were launched; set it to {launched}"
        raise ParamsError(f"runtime.processes: is {count}, but {there}")
    _share_threads(count)
    if launched == 1:
        _start_others(count)
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu)
    atexit.register(state.destroy_process_group)
    if not state.is_main_process:
        io.write_nothing()
    return Processes(state.num_processes, state.process_index)


def _share_threads(count: int) -> None:
    """Give each process its share of torch's threads if nothing says how many; Accelerate would warn that it does."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())


def _start_others(count: int) -> None:
    """Run this command again, once for each of the other processes; they end when this one does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0"}
    command = [sys.executable, *sys.orig_argv[sys.orig_argv.index("-m") :]]
    for rank in range(1, count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        # what they would say the first one says
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        other = subprocess.Popen(command, env=os.environ | own, **silent)
        atexit.register(other.terminate)
