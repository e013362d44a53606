"""Checkpoints written a piece at a time, in the files that another one has: what is written need never be in memory at once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from ..grafting.region import Tensors, outline
from ..grafting.select import pieces_of
from ..models.loading import WEIGHTS
from ..support.errors import ModelError
from ..support.io import write_json
from .folders import INDEX

# types as safetensors calls them, in the order in which its files have them
TYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip


def write_shards(folder: Path, tensors: Tensors, files: Mapping[str, Sequence[str]]) -> None:
    """Write tensors in a new folder: name of each file -> names of the tensors in it; with an index, if there are several files."""
    for file, names in files.items():
        write_tensors(folder / file, tensors, names)
    if {*files} != {WEIGHTS}:
        kinds = {name: outline(tensors, name) for names in files.values() for name in names}
        size = sum(kind.numel() * kind.itemsize for kind in kinds.values())
        where = {name: file for file, names in files.items() for name in names}
        write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))})


def write_tensors(path: Path, tensors: Tensors, names: Iterable[str]) -> None:
    """Write a file of some tensors, in the bytes in which safetensors would; ModelError for a type that it doesn't know."""
    kinds = {name: outline(tensors, name) for name in names}
    if strange := [name for name, kind in kinds.items() if kind.dtype not in TYPES]:
        raise ModelError(f"{strange[0]} is {kinds[strange[0]].dtype}, which can't be written")
    ranks, end = [*TYPES], 0
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name in sorted(kinds, key=lambda name: (ranks.index(kinds[name].dtype), name)):
        kind, start = kinds[name], end
        end += kind.numel() * kind.itemsize
        header[name] = {"dtype": TYPES[kind.dtype], "shape": [*kind.shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in [*header][1:]:
            for (piece,) in pieces_of(name, tensors):
                file.write(piece.contiguous().view(-1).view(torch.uint8).numpy().data)
