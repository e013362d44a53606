"""python -m tests.growth: what work costs as it grows: seconds of the processor, and memory beyond what was there before.

python -m tests.growth FOLDER BILLIONS [TASKS [WORK ...]]: what work on checkpoints of so many parameters costs beside `cat` and `cp`.  It
makes a base and so many tuned checkpoints (2 bytes a parameter, shards, 0.5 % of the values changed, as after reinforcement learning) in
the folder, unless they are there, and leaves them.  Files are taken out of the system's cache before each work; memory is what a
process has at most beside mapped files.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

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


# --- Checkpoints

# billions of parameters -> width, of the feed-forward layer, layers, heads, vocabulary
SHAPES = {
    "0.1": (768, 2048, 12, 12, 32_000), "1": (2048, 8192, 16, 32, 128_256), "3.2": (3072, 8192, 28, 24, 128_256),
    "8": (4096, 14_336, 40, 32, 128_256),
}  # fmt: skip
SHARD, CHANGED, KV_HEADS = 2_500_000_000, 0.005, 4
GRAFT = [sys.executable, "-m", "skill_grafting.patches"]
MERGE = """import sys, skill_grafting as sg
base, to, how, *tuned = sys.argv[1:]
sg.merge(base, {one: one for one in tuned}, how, to=to)"""
BY_HAND = """import sys, torch
from safetensors import safe_open
base, tuned, files = sys.argv[1], sys.argv[2], sys.argv[3:]
best = torch.empty(0)
for file in files:
    before, after = (safe_open(f"{side}/{file}", "pt") for side in (base, tuned))
    for name in before.keys():
        moved = (after.get_tensor(name).float() - before.get_tensor(name).float()).abs().view(-1)
        best = torch.cat([best, moved.topk(min(len(moved), 321_000)).values]).topk(min(len(best) + len(moved), 321_000)).values"""


def checkpoints(folder: Path, billions: str, tasks: int) -> list[Path]:
    """The folders of a base and of so many models tuned from it."""
    sides = [folder / name for name in ("base", *(f"tuned{number}" for number in range(tasks)))]
    width, inner, layers, heads, words = SHAPES[billions]
    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=KV_HEADS,
        vocab_size=words, tie_word_embeddings=True, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LlamaForCausalLM(config).named_parameters()}
    shards: list[list[str]] = [[]]
    for name, shape in shapes.items():
        if sum(2 * shapes[one].numel() for one in shards[-1]) + 2 * shape.numel() > SHARD and shards[-1]:
            shards.append([])
        shards[-1].append(name)
    files = {f"model-{number:05d}-of-{len(shards):05d}.safetensors": names for number, names in enumerate(shards, start=1)}
    for number, side in enumerate(sides):
        if not side.is_dir():
            config.save_pretrained(side)
            _write(side, files, shapes, number)
    return sides


def _write(side: Path, files: dict[str, list[str]], shapes: dict[str, torch.Size], changes: int) -> None:
    for place, (file, names) in enumerate(files.items()):
        generator = torch.Generator().manual_seed(place)
        tensors = {name: (0.02 * torch.randn(shapes[name], generator=generator, dtype=torch.bfloat16)) for name in names}
        generator.manual_seed(1000 + changes)
        for values in tensors.values() if changes else ():
            at = torch.randint(values.numel(), (int(CHANGED * values.numel()),), generator=generator)
            values.view(-1)[at] = values.view(-1)[at] * 1.02 + 1e-4
        save_file(tensors, side / file, metadata={"format": "pt"})
    where = {name: file for file, names in files.items() for name in names}
    (side / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def forget(folders: Iterable[Path]) -> None:
    """Take files out of the system's cache."""
    for file in (one for folder in folders for one in folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def of_command(command: list[object], folders: list[Path]) -> tuple[float, float, float, float]:
    """Seconds of the clock and of the processor, MiB beside mapped files, and GB read from the disk."""
    forget(folders)
    started, most, read = time.monotonic(), 0, 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            lines = dict(line.split(":") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            most = max(most, int(lines.get("RssAnon", "0 kB").split()[0]))
            found = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
            read = int(found["read_bytes"])
        except (OSError, ValueError):
            pass
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"{command} failed")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return time.monotonic() - started, processor, most / 1024, read / 1e9


def of_checkpoints(folder: Path, billions: str, tasks: int, *only: str) -> None:
    """Print the table of work on checkpoints, all of it or what has one of these words in its name."""
    base, *tuned = checkpoints(folder, billions, tasks)
    files = sorted(base.glob("*.safetensors"))
    both, three = [base, tuned[0]], [base, *tuned]
    patch, everything, copied, applied, merged = (folder / name for name in ("patch", "all", "copied", "applied", "merged"))
    pair = ["--base", base, "--finetuned", tuned[0]]
    works = {
        "`cat` of both": (["cat", *(file for side in both for file in sorted(side.glob("*.safetensors")))], both, None),
        "a loop of safetensors and topk by hand": ([sys.executable, "-c", BY_HAND, *both, *(file.name for file in files)], both, None),
        "`graft localize`, 0.01 %": ([*GRAFT, "localize", *pair, "--to", patch], both, patch),
        "`graft localize`, all that moved": (
            [*GRAFT, "localize", *pair, "--to", everything, "--sparsity", "1", "--localizer", "lota", "--region", "layers", "embeddings"],
            both, everything,
        ),
        "`cp` of the base": (["cp", "-r", base, copied], [base], copied),
        "`graft apply`, 0.01 %": ([*GRAFT, "apply", patch, "--base", base, "--to", applied], [base], applied),
        "`graft apply`, all that moved": ([*GRAFT, "apply", everything, "--base", base, "--to", applied], [base], applied),
        "`cat` of all": (["cat", *(file for side in three for file in sorted(side.glob("*.safetensors")))], three, None),
        **{
            f"`sg.merge` of {len(tuned)}, {how}": ([sys.executable, "-c", MERGE, base, merged, how, *tuned], three, merged)
            for how in ("mean", "ties")
        },
    }  # fmt: skip
    print("| work | seconds | of the processor | MiB | GB read |\n| :-- | --: | --: | --: | --: |")
    for name, (command, sides, made) in works.items():
        if only and not any(word in name for word in only):
            continue
        if made:
            shutil.rmtree(made, ignore_errors=True)
        seconds, processor, memory, read = of_command(command, sides)
        print(f"| {name} | {seconds:.1f} | {processor:.1f} | {memory:,.0f} | {read:.1f} |", flush=True)
        if made and made not in (patch, everything):
            shutil.rmtree(made)


if __name__ == "__main__":
    if sys.argv[1:]:
        folder, billions, *more = sys.argv[1:]
        sys.exit(of_checkpoints(Path(folder), billions, int(more[0]) if more else 2, *more[1:]))
    torch.set_num_threads(1)
    print("| work | size | seconds | MiB |\n| :-- | --: | --: | --: |")
    for name, work in WORKS.items():
        for size, seconds, memory in work():
            print(f"| {name} | {size:,} | {seconds:.2f} | {memory:,.0f} |", flush=True)
