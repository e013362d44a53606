"""The project's code.  Of a stage that DVC starts this is the first module, since it has to end when DVC does."""

import atexit
import gc
import os
import signal
import sys

# Importing torch and transformers makes a million objects that stay.  Looking them through for cycles again and again, and
# once more at the end, is a quarter of a stage's start.
gc.set_threshold(10_000, 20, 50)
atexit.register(gc.freeze)

# Until a command can answer Ctrl-C (stages/workflow/core/stage.py), it ends at once: in the midst of an import there is no word to say.
if any(word.startswith("stages.") for word in sys.orig_argv) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_with_dvc() -> int | None:
    """Ask Linux to end this process when DVC dies, so that a killed run leaves no second writer; leave if it is dead by now.

    Gives the process of DVC that runs this stage, if DVC has noted itself.
    """
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    writers = _writers()
    above = writers & {*_ancestors()}
    # above a process that shares the gradients of a fork there is no DVC either; it ends with the first one
    if writers and not above and os.environ.get("RANK", "0") == "0":
        sys.exit(f"{os.environ['DVC_STAGE']}: stopped, since the run of DVC that started it has ended")
    return min(above, default=None)


def _writers() -> set[int]:
    """Processes of DVC that run a stage here; none if they can't be read, as while another one notes itself."""
    import json
    from pathlib import Path

    try:
        notes = json.loads(Path(".dvc/tmp/rwlock").read_text(encoding="utf-8"))
        return {entry["pid"] for entry in notes["write"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _ancestors() -> list[int]:
    """The process that started this one, the one that started that, and so on, as far as Linux tells."""
    from contextlib import suppress
    from pathlib import Path

    found = [os.getppid()]
    with suppress(OSError):
        while found[-1] > 1:
            said = Path(f"/proc/{found[-1]}/stat").read_text(encoding="utf-8", errors="replace")
            found.append(int(said.rpartition(")")[2].split()[1]))
    return found


if "DVC_STAGE" in os.environ and sys.platform == "linux":
    dvc = _end_with_dvc()
    if os.environ.get("STAGE_FORK_SERVER") != "" and "-m" in sys.orig_argv:
        from .lib.forks import run_as_fork

        run_as_fork(dvc)
