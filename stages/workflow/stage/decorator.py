"""The decorator of all stages: parse arguments, hand out settings, run, and check at the end that no code or setting was edited."""

import argparse
import contextlib
import inspect
import json
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, GraftError, ModelError, ParamsError
from stages import AT_START, code_digests
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.stage import paths

PROJECT = Path(__file__).parents[3]
# what a stage may take besides its arguments
GIVEN = ("params", "machine")


def stage(function: Callable[..., None]) -> Callable[..., None]:
    """Make `main(params, machine, task, seed)`, or one of other axes, what its file does under `python -m`; it stands last in it.

    `params` are the settings that its entry in dvc.yaml lists, `machine` is torch as those of `runtime` say; it may leave out
    either.  The folders of its outputs are there, also where no task of it is chosen.
    """
    # of what `python -m` runs it has the name; of a file that is run by its path there is none
    spec = function.__globals__["__spec__"]
    module = spec.name if spec else function.__module__
    name = module.rpartition(".")[2]

    @wraps(function)
    def run(argv: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser(prog=f"python -m {module}", description=function.__doc__)
        for argument in inspect.signature(function).parameters.values():
            if argument.name not in GIVEN:
                parser.add_argument(f"--{argument.name}", type=argument.annotation, required=True)
        arguments = vars(parser.parse_args(argv))
        cell = "-".join(str(value) for value in arguments.values())
        label, started = f"{name}@{cell}" if cell else name, time.monotonic()
        if "DVC_STAGE" in os.environ:
            threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
        guarded(label, lambda: _run(function, module, label, arguments))
        _note(label, time.monotonic() - started)

    if function.__module__ == "__main__":
        run()
    return run


def _run(function: Callable[..., None], module: str, label: str, arguments: dict[str, Any]) -> None:
    """Call `function`; outside of DVC, an argument that the settings don't list is an error, and so is a missing input."""
    from stages.workflow.stage import settings

    code, entry, by_dvc = AT_START, entry_of(module), "DVC_STAGE" in os.environ
    if not by_dvc:
        settings.require_known(entry, arguments)
    given = _given(function, entry, arguments)
    if not by_dvc:
        _require_inputs(entry, arguments, f"{folder_of(module) / paths.PIPELINE}:{label}")
    with _telling_of_folders(entry):
        function(**given, **arguments)
    if by_dvc:
        require_unchanged(code)


def _filled(text: str, arguments: dict[str, Any]) -> str:
    """A place or a key of dvc.yaml for these arguments."""
    return re.sub(r"\$\{item\.(\w+)\}", lambda axis: str(arguments[axis[1]]), text)


def _require_inputs(entry: dict[str, Any], arguments: dict[str, Any], target: str) -> None:
    """Raise DataError that names what earlier stages haven't made yet, and the command that makes it."""
    deps = [_filled(dep, arguments) for dep in entry.get("deps", ())]
    made = [dep for dep in deps if "${" not in dep and not dep.startswith(str(paths.PIPELINES))]
    if missing := [dep for dep in made if not Path(dep).exists()]:
        raise DataError(f"{', '.join(missing)}: not there; `dvc repro {target.removeprefix('dvc.yaml:')}` makes it")


@contextlib.contextmanager
def _telling_of_folders(entry: dict[str, Any]) -> Iterator[None]:
    """Errors of a stage that reads a folder of the user's say how an experiment in a folder of its own gets that."""
    try:
        yield
    except (DataError, ModelError) as error:
        apart = "/.dvc/tmp/exps/" in Path.cwd().as_posix()
        if not apart or not any(dep.endswith(".root}") for dep in entry.get("deps", ())):
            raise
        told = "an experiment in a folder of its own takes along what git doesn't have by `-C PATH`"
        raise type(error)(f"{error}; {told}") from error


def folder_of(module: str) -> Path:
    """Where a stage's dvc.yaml lies: beside its script, of the main pipeline in the top folder."""
    top = module.rpartition(".")[0]
    return Path() if top == str(paths.PIPELINES) else Path(*top.split("."))


def entry_of(module: str) -> dict[str, Any]:
    """What dvc.yaml says of a stage; nothing of what is no stage."""
    file = PROJECT / folder_of(module) / paths.PIPELINE
    return load_yaml(file, ParamsError)["stages"].get(module.rpartition(".")[2], {}) if file.is_file() else {}


def _given(function: Callable[..., None], entry: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings and the prepared torch that a stage takes, by the name of its parameter; makes the folders of its outputs."""
    from stages.workflow.stage.settings import load_params

    for out in entry.get("outs", ()):
        if str(out).endswith("/${item.seed}"):
            Path(_filled(out, arguments)).mkdir(parents=True, exist_ok=True)
    takes, given = inspect.signature(function).parameters, {}
    if "params" in takes:
        listed = (part if isinstance(part, dict) else {"": [part]} for part in entry["params"])
        keys = (key for part in listed for several in part.values() for key in several)
        given["params"] = load_params(*(_filled(key, arguments) for key in keys))
    if "machine" in takes:
        from stages.text.tasks import runtime

        given["machine"] = runtime.start(given["params"].runtime)
    return given


def imported(code: dict[str, str]) -> list[str]:
    """The files that this process has imported, and the tables beside them."""
    modules = {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None)) in code}
    folders = {str(Path(file).parent) for file in modules}
    return [path for path in code if path in modules or (path.endswith(".yaml") and str(Path(path).parent) in folders)]


def require_unchanged(code: dict[str, str]) -> None:
    """Raise GraftError if settings or code have changed since the start; `code` has the digests of the start.

    DVC looks at both only when a stage has ended, and would record a result as made by the new ones.
    """
    from stages.workflow.stage import settings

    now = code_digests()
    edited = settings.changed() + [
        str(Path(path).relative_to(PROJECT)) for path in imported(code) if code[path] != now.get(path)
    ]
    if edited:
        raise GraftError(f"{', '.join(edited)}: edited while this ran; nothing is recorded, run `dvc repro` again")


def _end_with(parent: int) -> None:
    """End this process soon after its parent, so that a killed DVC leaves no second writer."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _note(label: str, seconds: float) -> None:
    """Append seconds and MiB of a stage to a local file for the plan and the runner; not an output."""
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    if paths.DURATIONS.parent.is_dir():
        with contextlib.suppress(OSError), paths.DURATIONS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": label, "seconds": round(seconds, 1), "mib": mib}) + "\n")


def last_runs() -> dict[str, tuple[float, float]]:
    """Seconds and MiB of the last run of each stage on this machine."""
    try:
        lines = [json.loads(line) for line in paths.DURATIONS.read_text(encoding="utf-8").splitlines()]
        return {line["stage"]: (line["seconds"], line.get("mib", 0.0)) for line in lines}
    except (OSError, ValueError, LookupError):
        return {}
