"""What a stage costs before it does anything: Python's imports, and DVC's own work."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stages.lib.forks import fork_server
from stages.lib.io import write_text
from tests.bench.results import Row, in_turns
from tests.dvc_project import ROOT, Copy, environment

SIZES = (50, 200, 500)
PIPELINE = """
stages:
  one:
    matrix:
      number: ${numbers}
    cmd: exec touch out-${item.number}
    outs:
    - out-${item.number}
"""


def measure() -> Iterator[Row]:
    """Start of a model stage / `import torch`; then a repro of stages that do nothing, and of one with nothing to do."""
    start = ("-m", "tests.bench.start_of_stage")
    with fork_server({}) as server:
        _wait_for(server)
        seconds = in_turns(
            3,
            torch=lambda: _python("-c", "import torch"),
            alone=lambda: _python(*start),
            forked=lambda: _python(*start, DVC_STAGE="start", **server),
        )
    for name, how in (("alone", "by itself"), ("forked", "as a fork")):
        yield Row(f"start of a stage with a model, {how}", seconds[name], "s")
        yield Row(f"the same / `import torch`, {how}", seconds[name] / seconds["torch"], "times", 1.25)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            first, again = _repro(Path(folder), size)
        yield Row(f"DVC's own work for a stage, of {size}", first / size, "s", 0.5)
        yield Row(f"`dvc repro` of {size} stages with nothing to do", again, "s")


def _python(*words: str, **more: str) -> None:
    subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | more, check=True)


def _wait_for(server: dict[str, str]) -> None:
    while not all(map(os.path.exists, server.values())):
        time.sleep(0.1)


def _repro(folder: Path, size: int) -> tuple[float, float]:
    copy = Copy(folder / "stages", environment(folder))
    copy.folder.mkdir()
    write_text(copy.folder / "params.yaml", f"numbers: {[*range(size)]}\n")
    write_text(copy.folder / "dvc.yaml", PIPELINE)
    copy.run("git", "init", "-q")
    copy.run("dvc", "init", "-q")
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        copy.repro()
        times.append(time.perf_counter() - begin)
    return times[0], times[1]
