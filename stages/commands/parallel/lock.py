"""Locks of the kernel's, which go with the process that holds them, however it ends; no process that it starts inherits one."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.lib.errors import StorageError

# of a runner of several stages, and of one stage of a cluster's worker
RUNNER, WORKER = Path(".dvc/tmp/runner.lock"), Path(".dvc/tmp/worker.lock")


@contextmanager
def held(lock: Path, waits: bool = False) -> Iterator[None]:
    """Keep others from the same lock, once they have let go of it if this `waits`; raises StorageError if it doesn't."""
    try:
        lock.parent.mkdir(exist_ok=True)
        file = lock.open("w")
    except OSError as problem:
        elsewhere = "; run this from the project's top folder" * isinstance(problem, FileNotFoundError)
        raise StorageError(f"{lock}: {problem.strerror}{elsewhere}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            told = (
                f"another run is at work in this folder, and holds {lock}: wait for its end, or stop it by Ctrl-C there"
            )
            raise StorageError(told) from None
        yield
