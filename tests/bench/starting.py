"""The cost of a stage before it does anything: Python's imports, and DVC's own work."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from hashlib import md5
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.commands.parallel.run_stage import ALONE, DVC
from stages.lib.forks import ADDRESS, Fork, fork_server
from stages.lib.io import write_text
from stages.lib.yaml12 import load_yaml
from tests.bench.results import Row, in_turns
from tests.dvc_project import ROOT, Copy, environment, wait_for

SIZES = (50, 200, 500)
# stages that run, first some as the runner runs them, a process each, then some by one `dvc repro`; the lock has all others
# already, as at the end of a long run
QUICK, PLAIN = 3, 7
RUN = QUICK + PLAIN
# a stage with as many deps and settings as those of a cell have
DEPS = [f"dep-{number}" for number in range(5)]
SECTIONS = ["finetune", "model", "runtime"]
PIPELINE = {
    "matrix": {"number": "${numbers}"},
    "cmd": "exec touch out-${item.number}",
    "deps": DEPS,
    "params": SECTIONS,
    "outs": [{"out-${item.number}": {"cache": False}}],
}


def measure() -> Iterator[Row]:
    """Start of a model stage / `import torch`; then a repro of stages that do nothing, and of one with nothing to do."""
    start = ("-m", "tests.bench.start_of_stage")
    with fork_server({}) as server:
        wait_for(lambda: all(map(os.path.exists, server.values())))
        forked = {"DVC_STAGE": "start", **server}
        stages = {"alone": lambda: _python(*start), "forked": lambda: _python(*start, **forked)}
        seconds = in_turns(3, torch=lambda: _python("-c", "import torch"), **stages)
    for name, how in (("alone", "by itself"), ("forked", "as a fork")):
        yield Row(f"start of a stage with a model, {how}", seconds[name], "s")
        yield Row(f"the same / `import torch`, {how}", seconds[name] / seconds["torch"], "times", 1.25)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            quick, plain, nothing = _repro(Path(folder), size)
        yield Row(f"DVC's own work for a stage of {size}, in the runner", quick / QUICK, "s", 0.5)
        yield Row("the same in one `dvc repro`", (plain - nothing) / PLAIN, "s")
        yield Row(f"`dvc repro` of {size} stages with nothing to do", nothing, "s")


def _python(*words: str, **more: str) -> None:
    subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | more, check=True)


def _repro(folder: Path, size: int) -> tuple[float, float, float]:
    """Seconds of the last of so many stages, first some one by one, then the others at once, and of a run of none."""
    copy = Copy(folder / "stages", environment(folder))
    copy.folder.mkdir()
    params = load_yaml(ROOT / "params.yaml", ValueError)
    params = {name: params[name] for name in SECTIONS}
    for name in [*DEPS, *(f"out-{number}" for number in range(size - RUN))]:
        write_text(copy.folder / name, "")
    write_text(copy.folder / "params.yaml", json.dumps({"numbers": [*range(size)], **params}))
    write_text(copy.folder / "dvc.yaml", json.dumps({"stages": {"one": PIPELINE}}))
    locked = {f"one@{number}": _locked(number, params) for number in range(size - RUN)}
    with (copy.folder / "dvc.lock").open("w", encoding="utf-8") as file:
        YAML().dump({"schema": "2.0", "stages": locked}, file)
    copy.run("git", "init", "-q")
    copy.run("dvc", "init", "-q")
    quick = _forked([f"one@{number}" for number in range(size - RUN, size - PLAIN)], copy)
    plain, nothing = copy.repro(), copy.repro()
    assert [run.text.count("Running stage") for run in (plain, nothing)] == [PLAIN, 0]
    return quick, plain.seconds, nothing.seconds


def _forked(targets: list[str], copy: Copy) -> float:
    """Seconds of stages one after another, each as the runner starts it."""
    more = copy.environment | {"PYTHONPATH": str(ROOT)}
    with (
        chdir(copy.folder),
        Path("said").open("w+") as said,
        Path(os.devnull).open() as nothing,
        fork_server(more, DVC) as server,
    ):
        wait_for(lambda: all(map(os.path.exists, server.values())))
        start = time.monotonic()
        for target in targets:
            files = (nothing.fileno(), said.fileno(), said.fileno())
            assert Fork(server[ADDRESS], [*ALONE, target], more, files).wait() == 0
        seconds = time.monotonic() - start
        said.seek(0)
        assert said.read().count("Running stage") == len(targets)
    return seconds


def _locked(number: int, params: dict[str, Any]) -> dict[str, Any]:
    """The entry in dvc.lock of a stage that has run, all of whose files are empty."""

    def empty(name: str) -> dict[str, Any]:
        return {"path": name, "hash": "md5", "md5": md5(b"").hexdigest(), "size": 0}

    locked = {"cmd": f"exec touch out-{number}", "params": {"params.yaml": params}}
    return locked | {"deps": [*map(empty, DEPS)], "outs": [empty(f"out-{number}")]}
