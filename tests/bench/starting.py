"""What a stage costs before it does anything: Python's imports, and DVC's own work."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stages.lib.io import write_text
from tests.bench.results import Row, in_turns
from tests.dvc_project import ROOT, Copy, environment

# what `finetune` imports before its first step
START = """
import torch
from stages.lib import runtime
from stages.lib.models.loading import save_model
from stages.lib.training.finetuning import TrainingCell
from transformers import BertForSequenceClassification
"""
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
    seconds = in_turns(3, torch=lambda: _python("import torch"), stage=lambda: _python(START))
    yield Row("start of a stage with a model", seconds["stage"], "s")
    yield Row("start of a stage with a model / `import torch`", seconds["stage"] / seconds["torch"], "times", 1.25)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            first, again = _repro(Path(folder), size)
        yield Row(f"DVC's own work for a stage, of {size}", first / size, "s", 0.5)
        yield Row(f"`dvc repro` of {size} stages with nothing to do", again, "s")


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


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
