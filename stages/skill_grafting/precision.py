"""The precision that `runtime.precision: auto` stands for: bfloat16 where the machine computes it natively.

The stage `model` chooses it once and stores it with the pretrained model, so all stages compute in the same precision wherever
they run.
"""

from pathlib import Path

import torch

from .errors import ModelError
from .io import read_json, write_sealed

FILE = "precision.json"
FLOAT32, BFLOAT16 = "float32", "bfloat16"


def native_precision(device: torch.device) -> str:
    """bfloat16 for a processor or GPU with instructions for it, as torch says; float32 for any other."""
    if device.type == "cuda":
        return BFLOAT16 if torch.cuda.is_bf16_supported(including_emulation=False) else FLOAT32
    able = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return BFLOAT16 if able.get("amx_bf16") or able.get("avx512_bf16") else FLOAT32


def write_precision(name: str, folder: Path) -> None:
    """Keep a chosen precision with a model."""
    write_sealed(folder / FILE, {"precision": name})


def read_precision(folder: Path) -> str:
    """The precision that was chosen for a model; raises ModelError if none was."""
    found = read_json(folder / FILE, ModelError)
    name = found.get("precision") if isinstance(found, dict) else None
    if name not in (FLOAT32, BFLOAT16):
        raise ModelError(f"{folder / FILE}: damaged: the precision is {name!r}, not {FLOAT32} or {BFLOAT16}")
    return name
