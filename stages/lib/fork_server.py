"""Forks itself for each command that comes, with libraries imported already: those of stages, or DVC (forks.py).

python -P fork_server.py ADDRESS PROCESS MODULE ...        listens at a socket ADDRESS until PROCESS ends; imports MODULE first

The socket is there from the start as ADDRESS.early, for who waits for the imports rather than make them itself.
Who connects hands over a command, folder, environment and open files, is told the fork's process and, in the end, its exit
code; the fork ends as soon as nobody is there to be told.  Nothing of the project is imported here, so a fork runs the code
that is there when it starts.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

LONGEST_REQUEST = 2**24
SET_PARENT_DEATH_SIGNAL = 1
EARLY = ".early"
# seconds between two looks at whether the other process lives
WATCH = 0.2


def serve(address: str, ends_with: int, *modules: str) -> None:
    """Import these modules, then fork for everyone who connects, until another process has ended."""
    ready = Path(address)
    early = ready.with_suffix(EARLY)

    def watch(*_: object) -> None:
        if not Path("/proc", str(ends_with)).exists():
            for path in (early, ready):
                with suppress(OSError):
                    path.unlink()
            os._exit(0)

    # no thread: what forks should have none.  A fork has no timer either.
    signal.signal(signal.SIGALRM, watch)
    signal.setitimer(signal.ITIMER_REAL, WATCH, WATCH)
    gc.disable()
    with socket.socket(socket.AF_UNIX) as listener:
        others = os.umask(0o077)  # whoever may write to the socket could have anything run
        listener.bind(str(early))
        os.umask(others)
        listener.listen()
        for name in modules:
            importlib.import_module(name)
        gc.freeze()  # or the first collection of a fork would write to every page that it shares
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks here
        ready.hardlink_to(early)
        while True:
            stage, _ = listener.accept()
            with stage:
                try:
                    child = os.fork()
                except OSError:  # no room for one more: who asked runs its command without
                    continue
                if child == 0:
                    listener.close()
                    run_fork(stage)


def run_fork(stage: socket.socket) -> None:
    """Become the process whose command comes from the socket, in a group of its own; send its exit code, and end."""
    os.setsid()
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    request, files, *_ = socket.recv_fds(stage, LONGEST_REQUEST, 3)
    while not request.endswith(b"\n"):
        more = stage.recv(LONGEST_REQUEST)
        if not more:
            os._exit(1)  # who asked is gone
        request += more
    words = json.loads(request)
    for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
        os.dup2(file, number)
        os.close(file)
        # anew, as Python asks a file only once whether it is a terminal or can be sought
        old, lines = getattr(sys, name), number == 2 or os.isatty(number)
        new = os.fdopen(
            number, "w" if number else "r", 1 if lines else -1, encoding=old.encoding, errors=old.errors, closefd=False
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(words["folder"])
    sys.path.insert(0, words["folder"])
    os.environ.clear()
    stage.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_end_with, args=(stage,), daemon=True).start()
    code = _run(words["command"], words["environment"])
    sys.stdout.flush()
    sys.stderr.flush()
    stage.sendall(f"{code}\n".encode())
    os._exit(code)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Exit code of `python -m MODULE ARGUMENT ...`, as Python itself would end."""
    sys.orig_argv, name = command, command[command.index("-m") + 1]
    sys.argv = command[command.index("-m") + 1 :]
    # the package asks whether DVC still lives only of what DVC has started
    held_back = {key: environment.pop(key) for key in ("DVC_STAGE",) if key in environment}
    os.environ.update(environment)
    gc.enable()
    try:
        importlib.import_module(name.partition(".")[0])
        os.environ.update(held_back)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end_with(stage: socket.socket) -> None:
    """End this process as soon as the other end of the socket is closed: nothing is sent there."""
    stage.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
