"""A graft as differences, to be added to the base model, for tools that take those in place of values."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..digest import UNSEALED, seal
from ..graft.apply import values_at
from ..graft.mask_file import StoredMask, named_tensors
from .base import Base
from .build_patch import Use

FORMAT, VERSION = "graft-delta", 1
DELTA = "delta.safetensors"


@dataclass(frozen=True)
class Deltas:
    """float32 differences at the places of a mask; `missed` sums stay beside the fine-tuned value, `furthest` at most."""

    values: dict[str, Tensor]
    missed: int
    furthest: float

    def __str__(self) -> str:
        """The distance that base + delta leaves to the fine-tuned model."""
        if not self.missed:
            return "base + delta is the fine-tuned value to the bit everywhere"
        return f"base + delta is the fine-tuned value to the bit but for {self.missed:,}, off by {self.furthest:.1e} at most"


def deltas_of(patch: StoredMask, base: Base, names: Iterable[str] | None = None) -> Deltas:
    """Differences that make the graft of the base model, or that of some tensors; a new head has no base and is no part of it.

    `after - before` in float32 gives the value to the bit wherever any float32 does: not always where a value ends far
    nearer to zero than it began, since the sum lies on the coarser grid of what it is made of.
    """
    before = values_at(base.tensors, patch.mask)
    after = {name: patch.values[name].to(before[name].dtype) for name in (before if names is None else names)}
    deltas = {name: values - before[name] for name, values in after.items()}
    gaps = [(before[name] + deltas[name] - values).abs() for name, values in after.items()]
    missed = sum(int((gap > 0).sum()) for gap in gaps)
    return Deltas(deltas, missed, max((float(gap.max()) for gap in gaps if len(gap)), default=0.0))


def whole_delta(deltas: Deltas, patch: StoredMask, base: Base) -> dict[str, Tensor]:
    """A tensor for each one of the base model, zero outside the mask; and the new head, whole."""
    tensors = {name: torch.zeros_like(values) for name, values in base.tensors.items()}
    for name, values in deltas.values.items():
        tensors[name].view(-1)[patch.mask.indices[name]] = values
    return {**tensors, **{name: values.float() for name, values in patch.head.items()}}


def write_sparse_delta(deltas: Deltas, patch: StoredMask, use: Use, file: Path) -> None:
    """Write indices, differences and the new head alone, sealed like a mask file."""
    head = {name: values.float() for name, values in patch.head.items()}
    shapes = {name: list(shape) for name, shape in patch.mask.region.shapes.items()}
    header = {"format": FORMAT, "version": VERSION, "shapes": shapes, "patch": use.model_dump(), **UNSEALED}
    save_file(named_tensors(patch.mask, deltas.values, head), file, metadata={"graft": json.dumps(header)})
    seal(file)
