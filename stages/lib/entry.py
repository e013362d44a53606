"""The entry point that all stages share: arguments, errors without a traceback, how long it took."""

import argparse
import contextlib
import inspect
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from . import paths
from .errors import GraftError, missing_package
from .io import is_storage_problem, writes

USER_MISTAKE, STOPPED = 2, 130
# raise an error where something that this process has read of the project is otherwise by now
COMPARISONS: list[Callable[[], None]] = []


def stage(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function(task, seed)`, or one of other arguments, a command-line entry point."""
    module = function.__module__ if function.__module__ != "__main__" else _script_module(function)
    name = module.rpartition(".")[2]

    @wraps(function)
    def run(argv: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser(prog=f"python -m {module}", description=function.__doc__)
        for argument in inspect.signature(function).parameters.values():
            parser.add_argument(f"--{argument.name}", type=argument.annotation, required=True)
        arguments = vars(parser.parse_args(argv))
        cell = "-".join(str(value) for value in arguments.values())
        label, started = f"{name}@{cell}" if cell else name, time.monotonic()
        if "DVC_STAGE" in os.environ:
            threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
        guarded(label, lambda: _run(function, module, label, arguments))
        _note(label, time.monotonic() - started)

    return run


def _run(function: Callable[..., None], module: str, label: str, arguments: dict[str, Any]) -> None:
    """Call `function`, whose training and mask learning go on where a run of the same settings and code was killed.

    DVC records a stage as it finds its inputs afterwards, so a result of code or settings that were edited while it ran would
    pass for one of the new: that is an error.  So is, without a DVC that took them from the settings, an argument that these
    don't have.
    """
    from stages import code

    from .checkpoint import keeping
    from .params import require_listed

    of_dvc = "DVC_STAGE" in os.environ
    if of_dvc:
        code.require_unchanged(module)  # not after hours
    else:
        require_listed(module, arguments)
    with keeping(paths.CHECKPOINTS / label, label, lambda: _identity(module, arguments)):
        function(**arguments)
    if of_dvc:
        for require_unchanged in COMPARISONS:
            require_unchanged()
        code.require_unchanged(module)


def _identity(module: str, arguments: dict[str, Any]) -> tuple[float, Any]:
    """Seconds between checkpoints, and what tells a run of a stage from others: arguments, the settings it has read, code."""
    from stages import code

    from . import params

    read = [[*keys, str(chosen)] for _, keys, chosen in params.READ]
    return params.checkpoint_seconds(), [module, arguments, read, code.running(module)]


def guarded(label: str, function: Callable[..., None], **arguments: Any) -> None:
    """Call `function`; show a user's mistake as one message and leave with a non-zero exit code."""
    try:
        with _stoppable(label):
            function(**arguments)
    except GraftError as error:
        print(f"{label}: {error}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        hint = "activate the project's environment (. .venv/bin/activate; `make setup` makes it)"
        print(f"{label}: {sys.executable} has no package {missing}; {hint}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except BrokenPipeError:
        # the reader of our output has gone, for instance `| head`; nothing is wrong on this side
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a path that may not be read, is too long, or leads through a file
        if not is_storage_problem(error):
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"{label}: {place}{error.strerror}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:
        print(f"{label}: stopped", file=sys.stderr)
        sys.exit(STOPPED)


@contextlib.contextmanager
def _stoppable(label: str) -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, but end this process where libraries, half imported, would make another error of it."""

    def stop(_: int, frame: FrameType | None) -> None:
        while frame:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(sys.stderr.fileno(), f"{label}: stopped\n".encode())
                os._exit(STOPPED)
            frame = frame.f_back
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, so that a DVC that was killed leaves no second writer."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _note(label: str, seconds: float) -> None:
    """Keep seconds and MiB of a stage beside DVC's own notes on this machine: no result, so no output of a stage."""
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    if paths.DURATIONS.parent.is_dir() and writes():
        with contextlib.suppress(OSError), paths.DURATIONS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": label, "seconds": round(seconds, 1), "mib": mib}) + "\n")


def _script_module(function: Callable[..., None]) -> str:
    """The name by which `python -m` runs the file of a function: `stages.study.sweep`."""
    *folders, name = Path(inspect.getsourcefile(function)).with_suffix("").parts
    last = max((place for place, folder in enumerate(folders) if folder == "stages"), default=len(folders))
    return ".".join([*folders[last:], name])
