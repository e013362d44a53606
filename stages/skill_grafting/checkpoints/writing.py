"""Checkpoints written a piece at a time, in the files that another one has: what is written need never be in memory at once."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from mmap import mmap
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ..grafting.apply import put_at
from ..grafting.region import Tensors, outline
from ..grafting.select import pieces_of
from ..models.loading import TOKENIZER_FILES, WEIGHTS
from ..support.errors import ModelError
from ..support.io import read_json, write_json
from .files import TYPES, Checkpoint, Stored
from .folders import CONFIG, INDEX

MODULES = "modules.json"
# what else a folder of transformers may have beside weights, settings and tokenizer
OTHER_FILES = (
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *(MODULES, "sentence_bert_config.json", "config_sentence_transformers.json"),
)
# and the folder of each further module of a sentence encoder, such as 1_Pooling
MODULE_FILES = (CONFIG, WEIGHTS)
# a file of settings or a vocabulary is smaller
LARGEST = 2**28
# bytes that are copied at once
PART = 2**24


def copy_beside(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the small files of a checkpoint that tell how it is used, and its config, into a new folder.

    A link is followed inside the checkpoint's folder and the hub's cache alone, and what should be JSON is read as such first, so that no
    file of the user's gets into a folder that is handed on.  Raises ModelError for anything else.
    """
    for name in (CONFIG, *TOKENIZER_FILES, *OTHER_FILES, *_of_modules(checkpoint.folder)):
        if (file := checkpoint.folder / name).is_file() and not (folder / name).exists():
            require_own(file, checkpoint.folder)
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name)


def _of_modules(folder: Path) -> list[str]:
    """The files of the modules that modules.json of a sentence encoder names, beside the model itself."""
    found = read_json(folder / MODULES, ModelError) if (folder / MODULES).is_file() else []
    paths = [part.get("path") for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    own = [path for path in paths if isinstance(path, str) and re.fullmatch(r"\w[\w.-]*", path)]
    return [f"{path}/{file}" for path in own for file in MODULE_FILES]


def require_own(file: Path, folder: Path) -> None:
    """Raise ModelError for a file of a folder that is a link to somewhere else, too large, or no JSON though its name says so."""
    place = file.resolve()
    cached = place.parent.name == "blobs" and place.parent.parent.name.startswith("models--")
    if not (cached or place.is_relative_to(folder.resolve())):
        raise ModelError(f"{file}: is a link to {place}, outside of its folder; put the file itself there")
    if place.stat().st_size > LARGEST:
        raise ModelError(f"{file}: has more than {LARGEST >> 20} MiB; a file of settings is smaller")
    if file.suffix == ".json":
        read_json(file, ModelError)


class TensorFiles:
    """New files of tensors, in the bytes in which safetensors has them, whose values are put into them in any order.

    files: name of each file -> names of the tensors in it; with an index, if there are several files.
    """

    def __init__(self, folder: Path, files: Mapping[str, Sequence[str]], tensors: Tensors) -> None:
        """Make the files; `tensors` have the types and shapes, and ModelError is raised for a type that safetensors hasn't."""
        self._places: dict[str, tuple[BinaryIO, int]] = {}
        self._opened = ExitStack()
        self._kinds = kinds = {name: outline(tensors, name) for names in files.values() for name in names}
        if strange := [name for name, kind in kinds.items() if kind.dtype not in TYPES]:
            raise ModelError(f"{strange[0]} is {kinds[strange[0]].dtype}, which can't be written")
        for file, names in files.items():
            self._make(folder / file, {name: kinds[name] for name in names})
        if {*files} != {WEIGHTS}:
            size = sum(kind.numel() * kind.itemsize for kind in kinds.values())
            where = {name: file for file, names in files.items() for name in names}
            write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))})

    def __enter__(self) -> "TensorFiles":
        """The files, which are closed at the end of `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def put(self, name: str, start: int, values: Tensor) -> None:
        """Write values to the places of a tensor from `start` on, laid end to end."""
        file, first = self._places[name]
        file.seek(first + start * values.itemsize)
        file.write(values.contiguous().view(-1).view(torch.uint8).numpy().data)

    def copy_bytes(self, name: str, stored: Stored) -> None:
        """Copy the tensor of a name from a file that has it in these very bytes."""
        file, first = self._places[name]
        file.flush()
        with stored.file.path.open("rb") as source:
            _copy_range(source, file, stored.start, first, stored.stop - stored.start)

    def put_at(self, name: str, indices: Tensor, values: Tensor) -> None:
        """Write values to flat indices of a tensor that is there."""
        file, first = self._places[name]
        file.flush()
        with mmap(file.fileno(), 0) as mapped:
            kind = self._kinds[name]
            there = torch.frombuffer(mapped, dtype=kind.dtype, count=kind.numel(), offset=first)
            put_at(there, indices, values)
            del there  # or the mapping can't be closed

    def copy(self, name: str, tensors: Tensors) -> None:
        """Write the tensor of a name, a piece at a time."""
        start = 0
        for (piece,) in pieces_of(name, tensors):
            self.put(name, start, piece)
            start += piece.numel()

    def _make(self, path: Path, kinds: Mapping[str, Tensor]) -> None:
        ranks, end = [*TYPES], 0
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        starts: dict[str, int] = {}
        for name in sorted(kinds, key=lambda name: (ranks.index(kinds[name].dtype), name)):
            kind, starts[name] = kinds[name], end
            end += kind.numel() * kind.itemsize
            header[name] = {"dtype": TYPES[kind.dtype], "shape": [*kind.shape], "data_offsets": [starts[name], end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        file = self._opened.enter_context(path.open("w+b"))
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        self._places |= {name: (file, 8 + len(text) + start) for name, start in starts.items()}


def _copy_range(source: BinaryIO, target: BinaryIO, start: int, to: int, count: int) -> None:
    """Copy bytes between files, by the system itself where it can."""
    try:
        while count and (done := os.copy_file_range(source.fileno(), target.fileno(), min(count, PART), start, to)):
            start, to, count = start + done, to + done, count - done
    except (AttributeError, OSError):  # another system, or files of two kinds
        pass
    source.seek(start)
    target.seek(to)
    while count:
        target.write(part := source.read(min(count, PART)))
        count -= len(part)
