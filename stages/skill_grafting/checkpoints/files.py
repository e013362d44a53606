"""A checkpoint of anybody's as it lies on the disk: a tensor or a piece of one at a time, in its own dtype, never all of them.

Files are mapped, so that what is read of them is no memory of this process that the system couldn't take back.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..grafting.apply import take_at
from ..grafting.fingerprint import Known
from ..grafting.select import evenly, piece_size
from ..support.errors import ModelError
from ..support.io import read_json
from .folders import CONFIG, commit_of, find_checkpoint, weight_files

if TYPE_CHECKING:
    from torch.nn import Module

# types as safetensors calls them, in the order in which its files have them
TYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
# what BERT's first checkpoints call the two parameters of a LayerNorm
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# pieces that are read from the disk together, ahead of their use
AHEAD = 16
# bytes of a file of which one value is asked for, from which on no more is read than where it lies
SPARSE = 2**20


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its type as safetensors calls it (F32, BF16, I8), shape, and the file's bytes from `start` to `stop`."""

    file: "WeightFile"
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def read_ahead(self, start: int, size: int) -> None:
        """Have the system fetch so many bytes of it, from this byte of the file on, meanwhile, where it knows how to."""
        if hasattr(os, "posix_fadvise") and (size := min(size, self.stop - start)) > 0:
            with self.file.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), start, size, os.POSIX_FADV_WILLNEED)

    @property
    def kind(self) -> torch.dtype:
        """Its type; raises ModelError for one that isn't read."""
        for kind, name in TYPES.items():
            if name == self.dtype:
                return kind
        known = ", ".join(TYPES.values())
        raise ModelError(f"{self.file.path}: has numbers of the type {self.dtype}; read are {known}")

    def read(self, start: int, stop: int) -> Tensor:
        """Its numbers from `start` to `stop`, a copy; the system reads nothing beyond them, of which it would guess that it comes next.

        Raises ModelError if the file has been cut off meanwhile.
        """
        size = self.kind.itemsize
        with self.file.path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.seek(self.start + start * size)
            found = bytearray((stop - start) * size)
            if file.readinto(found) < len(found):
                raise ModelError(f"{self.file.path}: damaged: it ends before the last of its tensors does")
        return torch.frombuffer(found, dtype=self.kind) if found else torch.empty(0, dtype=self.kind)


@dataclass(frozen=True, eq=False)
class WeightFile:
    """A file of tensors, mapped."""

    path: Path
    mapped: Any

    @classmethod
    def open(cls, path: Path) -> "WeightFile":
        """Open a file; raises ModelError if it is damaged."""
        try:
            return cls(path, safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: damaged: {error}") from error

    def tensors(self) -> dict[str, Stored]:
        """Where each tensor lies, by its name; safetensors has checked the header when the file was opened."""
        with self.path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header, first = json.loads(file.read(size)), 8 + size
        header.pop("__metadata__", None)
        return {
            name: Stored(self, one["dtype"], tuple(one["shape"]), *(first + end for end in one["data_offsets"]))
            for name, one in header.items()
        }


@dataclass(frozen=True)
class Checkpoint:
    """Config and tensors of a folder; `title` is how the user called it, `source` local or hub."""

    title: str
    source: str
    folder: Path
    config: dict[str, Any]
    files: dict[str, Stored]

    @classmethod
    def open(cls, title: str, revision: str | None = None, tokenizer: bool = True) -> "Checkpoint":
        """Open a folder or a hub id; raises ModelError if it isn't complete, is damaged, or holds more than data."""
        folder, source = find_checkpoint(title, revision, tokenizer)
        files: dict[str, Stored] = {}
        for file in weight_files(folder):
            files |= WeightFile.open(file).tensors()
        return cls(title, source, folder, read_json(folder / CONFIG, ModelError), files)

    @property
    def saved_from(self) -> list[str]:
        """The classes that its config.json names; none where it names no class."""
        saved = self.config.get("architectures") or []
        return [str(name) for name in (saved if isinstance(saved, list) else [saved])]

    @property
    def commit(self) -> str | None:
        """The commit of the hub that it is; None for a folder."""
        return commit_of(self.folder) if self.source == "hub" else None

    def read(self, stored: str) -> Tensor:
        """A tensor in its own dtype, by its name in the file, mapped; not to be written to."""
        return self.files[stored].file.mapped.get_tensor(stored)


@dataclass(frozen=True)
class Span:
    """The numbers `start` to `stop` of a tensor in a file, laid end to end; `name` is that in the file."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Named(Mapping):
    """A checkpoint's tensors under the names of the class that it is loaded as, read when they are asked for.

    spans: what of the files lies end to end in each; shapes: theirs; fingerprints: those of some of its names that were made.
    """

    checkpoint: Checkpoint
    spans: dict[str, tuple[Span, ...]]
    shapes: dict[str, tuple[int, ...]]
    fingerprints: dict[tuple[str, ...], Known] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint, names: Iterable[str], prefix: str) -> "Named":
        """Find each of the names, with or without the prefix of the backbone; those that aren't there are left out."""
        found = {name: _stored_name(checkpoint, name, prefix) for name in names}
        return cls.renamed(checkpoint, {name: stored for name, stored in found.items() if stored})

    @classmethod
    def renamed(cls, checkpoint: Checkpoint, stored: Mapping[str, str]) -> "Named":
        """Whole tensors under other names: name -> the one in the files."""
        shapes = {name: checkpoint.files[one].shape for name, one in stored.items()}
        return cls(checkpoint, {name: (Span(one, 0, prod(shapes[name])),) for name, one in stored.items()}, shapes)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor in its own dtype: mapped, or of several spans a copy; KeyError for an unknown name."""
        parts = [self._span(span) for span in self.spans[name]]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(self.shapes[name])

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor, which isn't read for it."""
        return name in self.spans

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self.spans)

    def __len__(self) -> int:
        """Number of names."""
        return len(self.spans)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """A tensor laid end to end, a piece at a time, in order; what comes next is read from the disk meanwhile."""
        return evenly(block for span in self.spans[name] for block in self._blocks(span))

    def between(self, name: str, start: int, stop: int) -> Tensor:
        """The numbers from `start` to `stop` of a tensor laid end to end; who takes it in even pieces has the next ones read meanwhile."""
        found = []
        for span in self._within(name, start, stop):
            stored, flat = self.checkpoint.files[span.name], self.checkpoint.read(span.name).view(-1)
            found.append(flat[span.start : span.stop])
            size = span.stop - span.start
            if span.start // size % AHEAD == 0:
                stored.read_ahead(stored.start + span.stop * flat.itemsize, AHEAD * size * flat.itemsize)
        return found[0] if len(found) == 1 else torch.cat(found)

    def split(self, name: str, start: int, values: Tensor) -> Iterator[tuple[Span, Tensor]]:
        """Values for a tensor from a place on, as those for each of its spans."""
        for span in self._within(name, start, start + len(values)):
            size = span.stop - span.start
            yield span, values[:size]
            values = values[size:]

    def _within(self, name: str, start: int, stop: int) -> Iterator[Span]:
        """What lies in the files from `start` to `stop` of a tensor laid end to end."""
        first = 0
        for span in self.spans[name]:
            low, high = max(start - first, 0), min(stop - first, span.stop - span.start)
            if low < high:
                yield Span(span.name, span.start + low, span.start + high)
            first += span.stop - span.start

    def outline(self, name: str) -> Tensor:
        """A tensor of its type and shape, without values."""
        kind = self.checkpoint.files[self.spans[name][0].name].kind
        return torch.empty(self.shapes[name], dtype=kind, device="meta")

    def take(self, name: str, indices: Tensor) -> Tensor:
        """The values at rising flat indices of a tensor, copied."""
        found = [part for stored, at, _ in self.places(name, indices) for part in self._taken(stored, at)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def places(self, name: str, indices: Tensor) -> Iterator[tuple[str, Tensor, slice]]:
        """Where rising flat indices of a tensor are in the files: for each span the name there, flat indices there, and which these are."""
        first = 0
        for span in self.spans[name]:
            size = span.stop - span.start
            low, high = torch.searchsorted(indices, torch.tensor([first, first + size])).tolist()
            yield span.name, indices[low:high] - first + span.start, slice(low, high)
            first += size

    def only(self, names: Iterable[str]) -> "Named":
        """The same with those of these names alone that it has, in their order."""
        known = [name for name in names if name in self.spans]
        parts = ({name: part[name] for name in known} for part in (self.spans, self.shapes))
        return Named(self.checkpoint, *parts)

    def file_of(self, name: str) -> str:
        """The name of the file that a tensor, or its beginning, is in."""
        return self.checkpoint.files[self.spans[name][0].name].file.path.name

    def stored(self, name: str) -> list[str]:
        """The names in the files of what a tensor is made of."""
        return [span.name for span in self.spans[name]]

    def whole(self, name: str) -> Stored | None:
        """Where a tensor lies in a file, if it is all of one there."""
        [span, *more] = self.spans[name]
        stored = self.checkpoint.files[span.name]
        return stored if not more and (span.start, span.stop) == (0, prod(stored.shape)) else None

    def dtypes(self, name: str) -> set[str]:
        """The types that a tensor has in the files."""
        return {self.checkpoint.files[stored].dtype for stored in self.stored(name)}

    @property
    def types(self) -> set[str]:
        """The types that its tensors have."""
        return {kind for name in self for kind in self.dtypes(name)}

    @property
    def used(self) -> set[str]:
        """The names in the files of all that it has."""
        return {stored for name in self for stored in self.stored(name)}

    def _span(self, span: Span) -> Tensor:
        return self.checkpoint.read(span.name).view(-1)[span.start : span.stop]

    def _taken(self, name: str, at: Tensor) -> Iterator[Tensor]:
        """The values at rising flat indices of a tensor in a file; where many lie in what is read together, the next is read meanwhile."""
        flat, stored = self.checkpoint.read(name).view(-1), self.checkpoint.files[name]
        size = AHEAD * piece_size()
        length, counts = size * flat.itemsize, torch.bincount(at // size).tolist()

        def fetch(block: int) -> None:
            if block < len(counts) and counts[block] * SPARSE > length:
                stored.read_ahead(stored.start + block * length, length)

        fetch(0)
        yield take_at(flat, at[:0])
        for number, part in enumerate(at.split(counts), start=1):
            fetch(number)
            yield take_at(flat, part)

    def _blocks(self, span: Span) -> Iterator[Tensor]:
        """First a piece, which is all that some look at, then several at a time."""
        stored, first = self.checkpoint.files[span.name], min(piece_size(), span.stop - span.start)
        yield stored.read(span.start, span.start + first)
        if first == span.stop - span.start:
            return
        flat, size = self._span(span), AHEAD * piece_size()
        start, length = stored.start + span.start * flat.itemsize, size * flat.itemsize
        stored.read_ahead(start, length)
        for number, block in enumerate(flat.split(size)):
            stored.read_ahead(start + (number + 1) * length, length)
            yield block if number else block[first:]


def _stored_name(checkpoint: Checkpoint, name: str, prefix: str) -> str | None:
    names = (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}")
    return next((old for new in names for old in (new, _old_name(new)) if old in checkpoint.files), None)


def _old_name(name: str) -> str:
    for new, old in OLD_NAMES.items():
        name = name.removesuffix(new) + old if name.endswith(new) else name
    return name


def require_as_stored(model: "Module") -> None:
    """Raise ModelError if a table has another row for padding than in the folder it is from: some kinds (Funnel) zero it in loading."""
    if not Path(folder := getattr(model, "name_or_path", "") or "-").is_dir():
        return
    checkpoint, parts = Checkpoint.open(folder, tokenizer=False), dict(model.named_modules())
    tables = {f"{name}.weight": part for name, part in parts.items() if getattr(part, "padding_idx", None) is not None}
    for name, stored in Named.of(checkpoint, tables, model.base_model_prefix).items():
        row, weight = tables[name].padding_idx, tables[name].weight
        zeroed = not weight.is_meta and not bool(weight[row].any())
        if zeroed and bool(stored[row].any()):
            what = f"transformers zeroes the row of padding of {name} when it loads a {type(model).__name__}"
            raise ModelError(f"{folder}: {what}, and a patch is of what lies in files; `graft apply` writes a folder")
