"""The entry point that all stages share: script -> this -> settings -> function, and a guard at the end."""

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
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

from stages.lib.command import guarded
from stages.lib.errors import GraftError
from stages.workflow.core import paths

PROJECT = Path(__file__).parents[3]
# of the code: what a module says, and the tables that it reads
CODE = (".py", ".yaml")
# of which DVC knows by itself, and `settings` what a stage has read
NO_CODE = (paths.PARAMS.name, paths.PIPELINE.name)


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

    Without a DVC that took them from the settings, an argument that these don't have is an error.
    """
    from stages.workflow.core import settings
    from stages.workflow.core.resume import keeping

    code = code_digests()
    if "DVC_STAGE" not in os.environ:
        settings.require_listed(module, arguments)

    def identify() -> tuple[float, list[Any]]:
        read = [[*keys, str(chosen)] for _, keys, chosen in settings.READ]
        return settings.checkpoint_seconds(), [module, arguments, read, {path: code[path] for path in imported(code)}]

    with keeping(paths.CHECKPOINTS / label, label, identify):
        function(**arguments)
    if "DVC_STAGE" in os.environ:
        require_unchanged(code)


def code_digests() -> dict[str, str]:
    """Every file of the project's code: path -> a digest of its bytes."""
    files = [path for path in (PROJECT / "stages").rglob("*") if path.suffix in CODE and path.name not in NO_CODE]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def imported(code: dict[str, str]) -> list[str]:
    """Those of these files that this process has imported, and the tables beside them."""
    modules = {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None)) in code}
    folders = {str(Path(file).parent) for file in modules}
    return [path for path in code if path in modules or (path.endswith(".yaml") and str(Path(path).parent) in folders)]


def require_unchanged(code: dict[str, str]) -> None:
    """Raise GraftError where settings or code are others than at the start, of which `code` are the digests.

    DVC looks at both only when a stage has ended, and would record a result as made by the new ones.
    """
    from stages.workflow.core import settings

    now = code_digests()
    edited = settings.edited() + [
        str(Path(path).relative_to(PROJECT)) for path in imported(code) if code[path] != now.get(path)
    ]
    if edited:
        raise GraftError(f"{', '.join(edited)}: edited while this ran; nothing is recorded, run `dvc repro` again")


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, so that a DVC that was killed leaves no second writer."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _note(label: str, seconds: float) -> None:
    """Keep seconds and MiB of a stage beside DVC's own notes on this machine: no result, so no output of a stage."""
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    if paths.DURATIONS.parent.is_dir():
        with contextlib.suppress(OSError), paths.DURATIONS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": label, "seconds": round(seconds, 1), "mib": mib}) + "\n")


def _script_module(function: Callable[..., None]) -> str:
    """The name by which `python -m` runs the file of a function: `stages.study.sweep`."""
    *folders, name = Path(inspect.getsourcefile(function)).with_suffix("").parts
    last = max((place for place, folder in enumerate(folders) if folder == "stages"), default=len(folders))
    return ".".join([*folders[last:], name])
