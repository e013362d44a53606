"""Runs a stage as a fork of a process that has its libraries imported (fork_server.py), since importing them takes longer than most stages.

The third stage that a run of DVC starts also starts that process, which ends with DVC; those after it are forks of it.
The runner of several stages at once has one of its own, whose address its stages find in the environment: those with a model the one
where they wait until it has imported all, as three processes that import the same at once take longer than one.  And it has one
that has imported DVC, whose forks are the runs of DVC that it starts, one for each stage.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every stage imports this file, and few of them start a process
    from subprocess import Popen

# where a fork server listens; no stage is a fork if it is empty
ADDRESS = "STAGE_FORK_SERVER"
SERVER = Path(__file__).with_name("fork_server.py")
# one file for each of the first stages of a run of DVC, and the socket; relative, as addresses of sockets have to be short
NOTES = Path(".dvc/tmp/forks")
# Arrow's allocator would start a thread, and what has threads can't be forked safely
NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# what a stage with a model, and one that draws, spend their first seconds on
IMPORTS = (
    "torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto", "pydantic", "ruamel.yaml", "pandas",
    "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg",
)  # fmt: skip
ENOUGH = 3
STOPPED = 130
# as in fork_server.py, which imports nothing of the project
EARLY = ".early"
# seconds that a new process has until it listens
PATIENCE = 10.0


def run_as_fork(dvc: int | None) -> None:
    """Let a fork run this stage, and end as it ends; return if nothing listens that could fork, as at the start of a run of DVC."""
    address = os.environ.pop(ADDRESS, None)
    if address is None and dvc:
        with suppress(OSError):
            address = _server_of(dvc)
    if address:
        _hand_over(address)


def _server_of(dvc: int) -> str | None:
    """Address of the server of a run of DVC once it listens; the third stage that asks starts it, as few are not worth it."""
    address = NOTES / f"{dvc}.socket"
    if address.exists():
        return str(address)
    NOTES.mkdir(exist_ok=True)
    for number in range(ENOUGH):
        with suppress(FileExistsError):
            (NOTES / f"{dvc}.{number}").touch(exist_ok=False)
            if number == 0:
                _remove_old_notes()
            if number == ENOUGH - 1:
                start_server(str(address), dvc)
            break
    return None


def _remove_old_notes() -> None:
    for note in NOTES.iterdir():
        if not Path("/proc", note.stem).exists():
            note.unlink(missing_ok=True)


def start_server(
    address: str, ends_with: int, environment: dict[str, str] | None = None, modules: Sequence[str] = IMPORTS
) -> "Popen":
    """A process that will listen there, once it has imported these modules, until another process ends."""
    import subprocess

    command = [sys.executable, "-P", str(SERVER), address, str(ends_with), *modules]
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen(
        command, env=os.environ | NO_THREADS | (environment or {}), start_new_session=True, **silent
    )


@contextmanager
def fork_server(environment: dict[str, str], modules: Sequence[str] = IMPORTS) -> Iterator[dict[str, str]]:
    """A fork server as long as this lasts; gives what tells a stage of it.  On other systems than Linux there is none."""
    if sys.platform != "linux":
        yield {}
        return
    import time
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="stages-") as folder:
        address, end = Path(folder, "socket"), time.monotonic() + PATIENCE
        with start_server(str(address), os.getpid(), environment, modules) as server:
            try:
                while not address.with_suffix(EARLY).exists() and server.poll() is None and time.monotonic() < end:
                    time.sleep(0.01)
                yield {ADDRESS: str(address)}
            finally:
                server.kill()


def waiting(environment: dict[str, str]) -> dict[str, str]:
    """The same environment for a stage that waits for its fork server, if it has one."""
    address = environment.get(ADDRESS)
    return environment | {ADDRESS: str(Path(address).with_suffix(EARLY))} if address else environment


class Fork:
    """A command, `python -m MODULE ARGUMENT ...`, as a fork of a server, in this folder; `pid` is its process and group.

    `files` are what it has as stdin, stdout and stderr.  It ends if this object goes.  Raises OSError if no server takes it.
    """

    def __init__(self, address: str, command: Sequence[str], environment: Mapping[str, str], files: Sequence[int]):
        import socket

        request = {"command": [*command], "folder": str(Path.cwd()), "environment": {**environment}}
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(address)
            socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [*files])
            # keeps the connection; of its lines, each a number, none is left once the other side is gone
            self._answers = server.makefile("rb")
        self.pid = int(self._answers.readline() or 0)
        if not self.pid:
            raise ConnectionError(f"{address} took no command")

    def wait(self) -> int:
        """Exit code, once it has ended: that of a process killed by SIGKILL, as `subprocess` has it, if it sent none."""
        with self._answers:
            return int(self._answers.readline() or -signal.SIGKILL)


def _hand_over(address: str) -> None:
    try:
        fork = Fork(address, sys.orig_argv, os.environ, (0, 1, 2))
    except OSError:
        return
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)
    if (code := fork.wait()) < 0:
        os.kill(os.getpid(), -code)  # as it was
    os._exit(code)


def _stop(*_: object) -> None:
    os.write(2, f"{os.environ['DVC_STAGE']}: stopped\n".encode())
    os._exit(STOPPED)
