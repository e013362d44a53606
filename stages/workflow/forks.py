"""Runs a stage's command as a fork of a process that has imported torch; it ends with its parent.

A stage is a fork of one process that has torch and transformers imported, since importing them takes longer than most stages:
multiprocessing's own fork server.  It runs the project's code as it is at that moment.
"""

import multiprocessing
import os
import runpy
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path

PRELOAD = ["torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto", "pydantic", "ruamel.yaml"]
PRELOAD += ["pandas", "scipy.stats", "safetensors.torch"]
STAGE = ["exec", "python", "-m"]
ALLOCATOR = {
    # Arrow's would start a thread, and a process with threads can't be forked safely
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # glibc's would give each large tensor back to the system, and get zeroed pages for the next one; it takes no more than 32 MiB
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
# starting a process asks all others for their exit codes, and one that two threads ask at once is 255 to one of them
ONE_AT_A_TIME = threading.Lock()
# returns the exit code, or None if the process still runs after so many seconds
Wait = Callable[[float], int | None]


def start(command: str, folder: str, environment: dict[str, str], printed: str, may_fork: bool) -> tuple[int, Wait]:
    """Start a command in a folder, its output in the file `printed`, as a fork if it is a stage's; gives its process group."""
    words = shlex.split(command)
    # the server of forks may have been killed, for want of memory for instance: there is a new one then, or none
    for _ in range(2 if may_fork and words[:3] == STAGE else 0):
        with suppress(EOFError, OSError):
            return _fork(words[3:], folder, environment, printed)
    with Path(printed).open("a") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        more = {"cwd": folder, "env": os.environ | environment, "start_new_session": True}
        plain = subprocess.Popen(command, shell=True, **streams, **more)

    def wait(seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            plain.wait(seconds)
        return plain.returncode

    return plain.pid, wait


def _fork(words: list[str], folder: str, environment: dict[str, str], printed: str) -> tuple[int, Wait]:
    """Start `python -m WORDS` as a fork; raises EOFError or OSError if the server of forks dies meanwhile."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    os.environ.update(ALLOCATOR)  # read when the server starts
    process = context.Process(target=_run_module, args=(words, folder, environment, printed))
    with ONE_AT_A_TIME:
        process.start()

    def wait_for_fork(seconds: float) -> int | None:
        connection.wait([process.sentinel], seconds)
        with ONE_AT_A_TIME:
            return process.exitcode

    return process.pid, wait_for_fork


def _run_module(words: list[str], folder: str, environment: dict[str, str], printed: str) -> None:
    """Be `python -m WORDS`, in a process group of its own."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.orig_argv, sys.argv = [sys.executable, "-m", *words], [words[0], *words[1:]]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGTERM)
