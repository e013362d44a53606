"""What all commands share: a user's mistakes without a traceback, and handling of Ctrl-C."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .errors import GraftError, missing_package, printable
from .writing import is_storage_problem

USER_MISTAKE, STOPPED = 2, 130


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
        # the reader of our output has gone, for instance `| head`; not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a path that may not be read, is too long, or leads through a file
        if not is_storage_problem(error):
            raise
        place = f"{printable(str(error.filename))}: " if error.filename else ""
        print(f"{label}: {place}{error.strerror}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:
        print(f"{label}: stopped", file=sys.stderr)
        sys.exit(STOPPED)


@contextlib.contextmanager
def _stoppable(label: str) -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, but end the process at once during imports, where libraries would turn it into another error."""

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
