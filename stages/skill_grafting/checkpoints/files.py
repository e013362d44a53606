"""A checkpoint of anybody's as it lies on the disk: one tensor at a time, in its own dtype, never all of them.

Files are mapped, so that what is read of them is no memory of this process that the system couldn't take back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..support.errors import ModelError
from ..support.io import read_json
from .folders import CONFIG, commit_of, find_checkpoint, weight_files

if TYPE_CHECKING:
    from torch.nn import Module

# what BERT's first checkpoints call the two parameters of a LayerNorm
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


@dataclass(frozen=True)
class Checkpoint:
    """Config and mapped tensors of a folder; `title` is how the user called it, `source` local or hub."""

    title: str
    source: str
    folder: Path
    config: dict[str, Any]
    files: dict[str, Any]

    @classmethod
    def open(cls, title: str, revision: str | None = None, tokenizer: bool = True) -> "Checkpoint":
        """Open a folder or a hub id; raises ModelError if it isn't complete, is damaged, or holds more than data."""
        folder, source = find_checkpoint(title, revision, tokenizer)
        files: dict[str, Any] = {}
        for file in weight_files(folder):
            try:
                stored = safe_open(file, framework="pt")
                files |= dict.fromkeys(stored.keys(), stored)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file}: damaged: {error}") from error
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

    def shape(self, stored: str) -> tuple[int, ...]:
        """Shape of a tensor, by its name in the file."""
        return tuple(self.files[stored].get_slice(stored).get_shape())

    def dtype(self, stored: str) -> str:
        """Type of a tensor, by its name in the file: F32, BF16, I8 and so on."""
        return self.files[stored].get_slice(stored).get_dtype()

    def read(self, stored: str) -> Tensor:
        """A tensor in its own dtype, mapped; not to be written to."""
        return self.files[stored].get_tensor(stored)


@dataclass(frozen=True)
class Named:
    """A checkpoint under the names of the class that it is loaded as; `stored` leads from these to those in its files."""

    checkpoint: Checkpoint
    stored: dict[str, str]

    @classmethod
    def of(cls, checkpoint: Checkpoint, names: Iterable[str], prefix: str) -> "Named":
        """Find each of the names, with or without the prefix of the backbone; those that aren't there are left out."""
        found = {name: _stored_name(checkpoint, name, prefix) for name in names}
        return cls(checkpoint, {name: stored for name, stored in found.items() if stored})

    def read(self, name: str) -> Tensor:
        """A tensor in its own dtype, mapped."""
        return self.checkpoint.read(self.stored[name])

    @property
    def types(self) -> set[str]:
        """The types that its tensors have."""
        return {self.checkpoint.dtype(stored) for stored in self.stored.values()}


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
    for name, stored in Named.of(checkpoint, tables, model.base_model_prefix).stored.items():
        row, weight = tables[name].padding_idx, tables[name].weight
        zeroed = not weight.is_meta and not bool(weight[row].any())
        if zeroed and bool(checkpoint.read(stored)[row].any()):
            what = f"transformers zeroes the row of padding of {name} when it loads a {type(model).__name__}"
            raise ModelError(f"{folder}: {what}, and a patch is of what lies in files; `graft apply` writes a folder")
