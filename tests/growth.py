"""python -m tests.growth: what work costs as it grows: seconds of the processor, and memory beyond what was there before."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import skill_grafting as sg
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import LazyTensors, Region
from skill_grafting.localizers.movement import movement_mask
from stages.text.rows.sampling import draw_sample
from stages.text.tasks.settings import DataParams
from tests.dvc_project import ROOT, of_tests

MILLION, SPARSITY = 10**6, 1e-4
CELLS = "stages:\n  cell:\n    foreach: [{items}]\n    do:\n      cmd: echo ${{item}} > ${{item}}\n      outs: [\"${{item}}\"]\n"
Row = tuple[int, float, float]


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor, children included, and the most MiB of memory beyond those at the start (of this process)."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in both)

    def memory(name: str) -> int:
        [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
        return int(line.split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start, before = used(), memory("VmRSS")
    work()
    return used() - start, (memory("VmHWM") - before) / 1024


def movement() -> Iterator[Row]:
    """The mask of what moved most among so many parameters, read tensor by tensor of a million, as from a checkpoint."""
    parts = [torch.randn(2, MILLION) for _ in range(16)]  # more than the cache holds
    for size in (1, 10, 100, 1000):
        names = [str(number) for number in range(size)]
        before, after = (LazyTensors(names, lambda name, side=side: parts[int(name) % 16][side]) for side in (0, 1))
        region = Region(dict.fromkeys(names, (MILLION,)))
        yield size * MILLION, *cost(lambda: movement_mask(before, after, region, int(SPARSITY * region.size)))  # noqa: B023


def merging() -> Iterator[Row]:
    """TIES of so many whole models of a million parameters."""
    import peft  # noqa: F401 - so that it isn't imported within what is measured

    base = nn.Sequential(*(nn.Linear(250, 250) for _ in range(16)))
    region = Region({name: tuple(weight.shape) for name, weight in base.named_parameters()})
    for count in (1, 2, 8, 32):
        tasks = {}
        for number in range(count):
            tuned = nn.Sequential(*(nn.Linear(250, 250) for _ in range(16)))
            tasks[str(number)] = (tuned, GraftMask.full(region))
        yield count, *cost(lambda: sg.merge(base, tasks, "ties"))  # noqa: B023


def runner() -> Iterator[Row]:
    """The runner on so many cells, each of which writes a word."""
    for count in (10, 100, 300):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "dvc.yaml").write_text(CELLS.format(items=", ".join(f"c{number}" for number in range(count))))
            (place / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
            environment = dict(os.environ) | of_tests(place)
            for words in (["git", "init", "-q"], ["dvc", "init", "-q"], [sys.executable, "-m", "stages.workflow.run"]):

                def call(words: list[str] = words) -> None:
                    subprocess.run(words, cwd=place, env=environment, check=True, capture_output=True)  # noqa: B023

                seconds, memory = cost(call)
            yield count, seconds, memory


def sampling() -> Iterator[Row]:
    """A sample of 64 of each class from so many rows."""
    draw, labels = np.random.default_rng(0), ["bad", "good"]
    data = DataParams(source="local", root="", columns={}, k=64, scarce="error", dev_share=1.0, test_max=0)
    for count in (1_000, 10_000, 100_000, 1_000_000):
        texts = draw.integers(0, 10**9, (count, 4)).tolist()
        rows = [
            {"sentence1": " ".join(map(str, text)), "sentence2": None, "label": labels[number % 2], "split": "train" if number % 10 else "test"}
            for number, text in enumerate(texts)
        ]
        yield count, *cost(lambda: draw_sample(rows, labels, "toy", 13, data))  # noqa: B023


WORKS = {"movement, parameters": movement, "TIES, models of 1 million": merging, "runner, cells": runner, "sampling, rows": sampling}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| work | size | seconds | MiB |\n| :-- | --: | --: | --: |")
    for name, work in WORKS.items():
        for size, seconds, memory in work():
            print(f"| {name} | {size:,} | {seconds:.2f} | {memory:,.0f} |", flush=True)
