"""What all commands share: a user's mistakes without a traceback, and handling of Ctrl-C."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from .errors import GraftError, one_line, printable
from .writing import is_storage_problem

USER_MISTAKE, STOPPED = 2, 130
# how Python, torch, the loader of libraries and C++ say that the system gives no more memory
NO_MEMORY = re.compile(
    "(?i)can(no|')t allocate memory|unable to mmap|out of memory|failed to map segment|bad_alloc|can't start new thread|os error 12\\b"
)


def missing_package(error: ModuleNotFoundError) -> str:
    """The name of a package that isn't installed; re-raises the error if it is one of our own modules."""
    name = (error.name or "").partition(".")[0]
    if name in ("", __name__.partition(".")[0]):
        raise error
    return name


def _lacks_memory(error: BaseException | None) -> str | None:
    """What is said of an error if it, or what it was raised for, is one of memory: libraries' errors are told as those of a folder."""
    while error is not None:
        if isinstance(error, MemoryError) or (NO_MEMORY.search(str(error)) and not isinstance(error, GraftError)):
            reason = printable(one_line(error)).rstrip(": ")  # Python's own says nothing
            return f"there is not enough memory ({reason}); free some, or raise the limit that `ulimit -v` shows"
        error = error.__cause__ or error.__context__
    return None


def _of_the_machine(error: Exception) -> str:
    """What is said of an error that memory or disk are the reason of; re-raises any other."""
    if told := _lacks_memory(error):
        return told
    if not (isinstance(error, OSError) and is_storage_problem(error)):
        raise error
    # a path that may not be read, is too long, or leads through a file
    place = f"{printable(str(error.filename))}: " if error.filename else ""
    return f"{place}{error.strerror}"


def guarded(label: str, function: Callable[..., None], **arguments: Any) -> None:
    """Call `function`; show a user's mistake as one message and leave with a non-zero exit code."""
    try:
        function(**arguments)
    except GraftError as error:
        print(f"{label}: {_lacks_memory(error) or error}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        hint = "activate the project's environment (. .venv/bin/activate; `make setup` makes it)"
        print(f"{label}: {sys.executable} has no package {missing}; {hint}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except BrokenPipeError:
        # the reader of our output has gone, for instance `| head`; not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        print(f"{label}: {_of_the_machine(error)}", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:
        print(f"{label}: stopped", file=sys.stderr)
        sys.exit(STOPPED)
