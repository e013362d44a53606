"""What every stage's entry point shares: arguments, errors without a traceback, no orphans."""

import argparse
import ctypes
import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from stages.lib.errors import GraftError

USER_MISTAKE = 2


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
        die_with_parent()
        cell = "-".join(str(value) for value in arguments.values())
        guarded(f"{name}@{cell}" if cell else name, function, **arguments)

    return run


def guarded(label: str, function: Callable[..., None], **arguments: Any) -> None:
    """Call `function`; show a user's mistake as one message and leave with a non-zero exit code."""
    try:
        function(**arguments)
    except GraftError as error:
        print(f"{label}: {error}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except BrokenPipeError:
        # the reader of our output has gone, for instance `| head`; nothing is wrong on this side
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"{label}: stopped", file=sys.stderr)
        sys.exit(130)


def die_with_parent() -> None:
    """Ask Linux to end this process when DVC dies, so that a killed run leaves no second writer."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _script_module(function: Callable[..., None]) -> str:
    """The name by which `python -m` runs the file of a function: `stages.study.sweep`."""
    *folders, name = Path(inspect.getsourcefile(function)).with_suffix("").parts
    inside = folders[folders.index("stages") :] if "stages" in folders else []
    return ".".join([*inside, name])
