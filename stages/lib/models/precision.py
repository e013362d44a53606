"""The precision that a machine computes a model faster in: what `runtime.precision: auto` stands for.

It is measured once, by the stage `model`, and lies with the pretrained model from then on.  So all stages compute in the same
one, and their results follow from it as from any setting, wherever they run.
"""

import time
from math import prod
from pathlib import Path

import torch

from ..errors import ModelError
from ..io import read_json, write_json
from .anatomy import Anatomy

FILE = "precision.json"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
# of a processor that has instructions for it; others take longer than for float32
FLAGS = {"amx_bf16", "avx512_bf16"}
PROCESSOR = Path("/proc/cpuinfo")
TOKENS, TRIES = 512, 7


def choose_precision(anatomy: Anatomy, device: torch.device) -> tuple[str, str]:
    """The precision for a model on a device, and in words why.

    Measured is a training step of the largest matrix in its layers, forward and backward, for 512 tokens.
    """
    if not has_bfloat16(device):
        return FLOAT32, "there are no instructions for bfloat16"
    names = anatomy.names(["layers"])
    shape = max((anatomy.shapes[name] for name in names if len(anatomy.shapes[name]) == 2), key=prod)
    seconds = {name: measure_step(shape, getattr(torch, name), device) for name in (FLOAT32, BFLOAT16)}
    said = ", ".join(f"{name} {1000 * taken:.1f} ms" for name, taken in seconds.items())
    return min(seconds, key=seconds.__getitem__), f"a step of {' x '.join(map(str, shape))}: {said}"


def has_bfloat16(device: torch.device, processor: Path = PROCESSOR) -> bool:
    """True for a device that multiplies matrices of bfloat16 by instructions of its own, as far as it says."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not processor.is_file():
        return False
    lines = processor.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not FLAGS.isdisjoint(flags.split())


def measure_step(shape: list[int], precision: torch.dtype, device: torch.device) -> float:
    """Seconds of the fastest of some forward and backward passes through one matrix, its weights kept in float32."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(*shape, generator=generator).to(device).requires_grad_()
    tokens = torch.randn(TOKENS, shape[1], generator=generator).to(device).requires_grad_()
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            result = torch.nn.functional.linear(tokens, weight)
        result.float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def write_precision(name: str, folder: Path) -> None:
    """Keep a chosen precision with a model."""
    write_json(folder / FILE, {"precision": name})


def read_precision(folder: Path) -> str:
    """The precision that was chosen for a model; raises ModelError if none was."""
    found = read_json(folder / FILE, ModelError)
    name = found.get("precision") if isinstance(found, dict) else None
    if name not in (FLOAT32, BFLOAT16):
        raise ModelError(f"{folder / FILE}: damaged: the precision is {name!r}, not {FLOAT32} or {BFLOAT16}")
    return name
