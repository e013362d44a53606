"""A checkpoint of anybody's as it lies on the disk: one tensor at a time, in its own dtype, never all of them.

Files are mapped, so that what is read of them is no memory of this process that the system couldn't take back.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..digest import require_listed
from ..errors import ModelError
from ..graft.running_selection import LazyTensors
from ..io import read_json
from .anatomy import CLASSES, SOME_LABELS
from .loading import load_config, one_line, quiet_transformers
from .sources import CONFIG, commit_of, find_checkpoint, weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# as safetensors calls what can be grafted: whole numbers and eight bits are those of quantised weights
FLOATS = ("F32", "BF16", "F16")
# what BERT's first checkpoints call the two parameters of a LayerNorm
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
MOST_NAMED = 3


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
            require_listed(folder, file.name)
            try:
                stored = safe_open(file, framework="pt")
                files |= dict.fromkeys(stored.keys(), stored)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file}: damaged: {error}") from error
        return cls(title, source, folder, read_json(folder / CONFIG, ModelError), files)

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

    @property
    def types(self) -> set[str]:
        """The types that its tensors have."""
        return {self.checkpoint.dtype(stored) for stored in self.stored.values()}

    def read(self, name: str) -> Tensor:
        """A tensor in its own dtype, mapped."""
        return self.checkpoint.read(self.stored[name])

    def values(
        self, look: Callable[[str], object] = lambda _: None, device: "torch.device | str" = "cpu"
    ) -> LazyTensors:
        """All of them in float32, which holds each value exactly, on a device; one at a time, whose name `look` hears."""

        def read(name: str) -> Tensor:
            values = self.read(name).to(device).float()
            look(name)
            return values

        return LazyTensors(self.stored, read)

    def problems(self, shapes: dict[str, Sequence[int]]) -> list[str]:
        """Why it can't be grafted: tensors of these shapes that are missing, have another one, or are quantised."""
        missing = [name for name in shapes if name not in self.stored]
        packed = [name for name, stored in self.stored.items() if self.checkpoint.dtype(stored) not in FLOATS]
        other = [
            f"{name} is {list(found)} and not {list(shapes[name])}"
            for name, stored in self.stored.items()
            if name not in packed and (found := self.checkpoint.shape(stored)) != tuple(shapes[name])
        ]
        types = ", ".join(sorted(self.types - {*FLOATS}))
        reasons = {
            "missing": missing,
            f"in {types}; only weights in {', '.join(FLOATS)} can be grafted": packed,
            "of another shape than its config.json says": other,
        }
        told = [
            f"{self.checkpoint.title}: {len(names)} tensor{'s'[: len(names) > 1]} {words} ({listed(names)})"
            for words, names in reasons.items()
            if names
        ]
        if missing and (unused := sorted(self.checkpoint.files.keys() - {*self.stored.values()})):
            told.append(
                f"it has {listed(unused)} besides; are these the missing ones, load it with transformers and save it anew by "
                "save_pretrained(..., save_original_format=False)"
            )
        return told


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(names) - MOST_NAMED:,} more"] * (len(names) > MOST_NAMED)
    return ", ".join([*names[:MOST_NAMED], *more])


def _stored_name(checkpoint: Checkpoint, name: str, prefix: str) -> str | None:
    bare = name.removeprefix(f"{prefix}.")
    for candidate in (name, bare, f"{prefix}.{name}"):
        for new, old in {"": "", **OLD_NAMES}.items():
            if candidate.endswith(new) and (found := candidate.removesuffix(new) + old) in checkpoint.files:
                return found
    return None


def mode_of(checkpoint: Checkpoint) -> str | None:
    """The `model.mode` whose class a checkpoint was saved from; None if it was another class."""
    from transformers.models.auto import modeling_auto

    classes = {
        "standard": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "prompt": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "autoregressive": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    saved = checkpoint.config.get("architectures") or [None]
    kind = checkpoint.config.get("model_type")
    return next((mode for mode, names in classes.items() if names.get(kind) == saved[0]), None)


def labels_of(checkpoint: Checkpoint) -> list[str]:
    """The names of the labels that a classifier's config has, in the order of its logits; LABEL_0 and so on if it has none."""
    names = checkpoint.config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = [str(names[str(number)]) for number in range(len(names))]
    except (KeyError, TypeError, AttributeError):
        raise ModelError(f"{checkpoint.title}: its id2label should name the labels 0, 1, ..., not {names}") from None
    if len({*labels}) < len(labels):
        raise ModelError(f"{checkpoint.title}: two of its labels have the same name: {', '.join(labels)}")
    return labels


def skeleton(checkpoint: Checkpoint, mode: str, labels: int = SOME_LABELS) -> "PreTrainedModel":
    """The model of a checkpoint's config without any values; raises ModelError if transformers can't make it."""
    import torch
    import transformers

    quiet_transformers()
    config = load_config(checkpoint.folder)
    if mode == "standard":
        config.num_labels = labels
    try:
        with torch.device("meta"):
            return getattr(transformers, CLASSES[mode]).from_config(config, trust_remote_code=False)
    except Exception as error:  # transformers checks little of config.json, and runs into the rest anyhow
        raise ModelError(f"{checkpoint.title}: can't be read with mode {mode}: {one_line(error)}") from error
