"""Becomes the command that it is given, as a process that Linux ends with the one that started it.

python bound.py PARENT COMMAND ...        PARENT: the process that starts it

So nothing outlives a runner or a worker that was killed: DVC ends, and with DVC the stage (stages/__init__.py).
"""

import os
import signal
import sys
from collections.abc import Iterable


def bound(command: Iterable[str]) -> list[str]:
    """The command for a process that ends when this one does."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() == int(parent):
        os.execvp(command[0], command)
