"""GraftMask: which parameters a graft takes from the fine-tuned model.

This is the contract of every localizer (movement, learned, random, bias-only, FISH, TaLoS, ...):
whatever it looks at, it gives a GraftMask over a Region, with

* `indices`: tensor name -> sorted flat indices, int64, shape (number selected in that tensor,),
  tensors without a selected parameter left out;
* exactly as many parameters as it was asked for, unless it documents "at most";
* the same result for the same input, ties included.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..support.errors import MaskError, ModelError, ParamsError, a_kind, did_you_mean
from .region import Region, Tensors, outline

# booleans pay where rows hold more than this part of the tensor
PART = 64


class _Shortly(Repr):
    """Shows the beginning of long lists and texts, and four digits of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict, self.maxlist, self.maxstring, self.maxother = 20, 3, 60, 60

    def repr_float(self, number: float, _level: int) -> str:
        return f"{number:.4g}"


class Record(dict):
    """How a mask was found, shown in a few words."""

    def __repr__(self) -> str:
        return _Shortly().repr(dict(self))


@dataclass(frozen=True, eq=False, repr=False)
class GraftMask:
    """A set of selected parameters of a region, with the operators of sets: `|`, `&`, `-`, `~`, `len` and `==`.

    Masks of two regions, as two fine-tunings that moved other tensors have, are joined in the region of all tensors of both.

    indices: for each tensor with selected parameters its sorted flat indices, int64; record: how the mask was found (method, settings,
    losses by step, the step that was kept).
    """

    region: Region
    indices: dict[str, Tensor]
    record: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", Record(self.record))
        for name, indices in self.indices.items():
            if name not in self.region.shapes:
                raise MaskError(f"{name} is not in the region")
            if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.dim() != 1:
                raise MaskError(f"{name}: indices must be one row of int64, sorted")
            size, row = prod(self.region.shapes[name]), indices.cpu().numpy()  # which compares faster than torch
            if len(row) and (row[0] < 0 or row[-1] >= size or (row[1:] <= row[:-1]).any()):
                raise MaskError(f"{name}: flat indices must rise strictly within 0..{size - 1}")

    @classmethod
    def from_region_indices(cls, region: Region, region_indices: Tensor) -> "GraftMask":
        """The mask of these region indices, which may come in any order; MaskError if one isn't in the region."""
        return cls(region, region.split(region_indices))

    @classmethod
    def empty(cls, region: Region) -> "GraftMask":
        """Nothing selected: the graft is the pretrained model."""
        return cls(region, {})

    @classmethod
    def full(cls, region: Region) -> "GraftMask":
        """Everything selected: the graft is the fine-tuned model.  Its tensors share memory."""
        every = torch.arange(max(region.sizes, default=0))
        return cls(region, {name: every[:size] for name, size in zip(region.shapes, region.sizes, strict=True)})

    @property
    def counts(self) -> dict[str, int]:
        """Number of selected parameters of each tensor that has any."""
        return {name: len(indices) for name, indices in self.indices.items()}

    @property
    def selected(self) -> int:
        """Number of selected parameters."""
        return sum(self.counts.values())

    @property
    def sparsity(self) -> float:
        """Selected / graftable parameters."""
        return self.selected / self.region.size

    def by_module(self, depth: int | None = None) -> dict[str, int]:
        """Number of selected parameters of each module of the region, in its order, 0 if there are none.

        A module is a parameter's name without its last part; `depth` keeps that many parts of it.
        """
        modules: dict[str, int] = {}
        for name in self.region.shapes:
            module = ".".join(name.split(".")[:-1][:depth])
            modules[module] = modules.get(module, 0) + self.counts.get(name, 0)
        return modules

    def by_row(self, name: str, axis: int = 0, parts: int = 0) -> Tensor:
        """Number of selected parameters of each row of a tensor, or of each index of another axis, int64; of each of so many equal `parts`.

        The rows of a linear layer's weight are its output neurons, its columns (axis=1) what it reads.  With the number of heads as
        `parts`, the rows of a query's, key's or value's weight are heads, and the columns of what follows them.  GPT-2's layers have both
        the other way round.  Raises MaskError for a tensor that isn't in the region, or that has no such axis or parts.
        """
        shape = self.region.shapes.get(name, ())
        if not -len(shape) <= axis < len(shape):
            hint = (
                f"has the shape {[*shape]}, so no axis {axis}" if name in self.region.shapes else "is not in the region"
            )
            raise MaskError(f"{name}: {hint}{'' if shape else did_you_mean(name, self.region.shapes)}")
        if parts < 0 or (parts and shape[axis] % parts):
            raise MaskError(f"parts: {shape[axis]} can't be divided into {parts} equal parts")
        indices = self.indices.get(name, torch.empty(0, dtype=torch.int64))
        counts = torch.bincount(torch.unravel_index(indices, shape)[axis], minlength=shape[axis])
        return counts.view(parts, -1).sum(1) if parts else counts

    def __and__(self, other: "GraftMask") -> "GraftMask":
        """What both masks select; raises MaskError if a tensor of one name has two shapes in their regions."""
        return self._joined(other, _intersection)

    def __or__(self, other: "GraftMask") -> "GraftMask":
        """What either mask selects; raises MaskError if a tensor of one name has two shapes in their regions."""
        return self._joined(other, _union)

    def __sub__(self, other: "GraftMask") -> "GraftMask":
        """What this mask selects and the other doesn't; raises MaskError if a tensor of one name has two shapes in their regions."""
        return self._joined(other, _difference)

    def __invert__(self) -> "GraftMask":
        """What this mask doesn't select of its region."""
        return GraftMask.full(self.region) - self

    def __len__(self) -> int:
        """Number of selected parameters."""
        return self.selected

    def __eq__(self, other: object) -> bool:
        """True if both select the same parameters of the same region."""
        if not isinstance(other, GraftMask):
            return NotImplemented
        same = self.region.shapes == other.region.shapes and self._counted() == other._counted()
        return same and all(torch.equal(self.indices[name], other.indices[name]) for name in self._counted())

    def __hash__(self) -> int:
        return hash((frozenset(self.region.shapes.items()), frozenset(self._counted().items())))

    def equals(self, other: "GraftMask") -> bool:
        """The same as ==, under torch's name for it."""
        return self == other

    def dense(self) -> dict[str, Tensor]:
        """A boolean tensor for every parameter of the region, True where the mask selects, by name and in the parameter's shape."""
        whole = {name: torch.zeros(prod(shape), dtype=torch.bool) for name, shape in self.region.shapes.items()}
        for name, indices in self.indices.items():
            whole[name][indices] = True
        return {name: flat.reshape(self.region.shapes[name]) for name, flat in whole.items()}

    def overlap(self, other: "GraftMask") -> float:
        """|A ∩ B| / |A ∪ B| (intersection over union, table 8 of the paper), 0 if both are empty."""
        both = (self & other).selected
        either = self.selected + other.selected - both
        return both / either if either else 0.0

    def save(self, path: str | Path) -> None:
        """Write the mask, without the selected values, to a safetensors file that `load_mask` reads."""
        files = import_module(".mask_files", __package__)  # which makes masks of files, and so imports this one
        files.write_mask(Path(path), files.StoredMask(self, {}, {}, {"found": self.record}))

    def __repr__(self) -> str:
        tensors = f"{len(self.indices)} tensor{'s'[: len(self.indices) != 1]}"
        return f"GraftMask({self.selected:,} of {self.region.size:,} parameters, in {tensors})"

    def _counted(self) -> dict[str, int]:
        """`counts` of tensors of which something is selected."""
        return {name: count for name, count in self.counts.items() if count}

    def _joined(self, other: "GraftMask", join: Callable[[Tensor, Tensor, int], Tensor]) -> "GraftMask":
        if not isinstance(other, GraftMask):
            return NotImplemented
        region, nothing = self.region.joined(other.region), torch.empty(0, dtype=torch.int64)
        made = {
            name: join(self.indices.get(name, nothing), other.indices.get(name, nothing), size)
            for name, size in zip(region.shapes, region.sizes, strict=True)
            if name in self.indices or name in other.indices
        }
        heads = sorted(named_heads(self) | named_heads(other))  # what was named as a head of either stays one
        return GraftMask(
            region,
            {name: indices for name, indices in made.items() if len(indices)},
            {"heads": heads} if heads else {},
        )

    def region_indices(self) -> Tensor:
        """Sorted region indices of the selected parameters, int64, shape (selected,)."""
        parts = [self.indices[name] + start for name, start in self.region.starts.items() if name in self.indices]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def named_heads(mask: GraftMask) -> set[str]:
    """The parameters that were named as heads when the mask was found; none of what is no mask, which `require_mask` refuses."""
    return {*mask.record.get("heads", ())} if isinstance(mask, GraftMask) else set()


def require_mask(mask: GraftMask, weights: Tensors) -> None:
    """Raise ModelError unless the mask is of a model with these tensors, ParamsError if it is none."""
    if not isinstance(mask, GraftMask):
        raise ParamsError(f"mask: should be a GraftMask, not {a_kind(mask)}")
    for name, shape in mask.region.shapes.items():
        if name not in weights or outline(weights, name).shape != shape:
            raise ModelError(f"the mask is of other models: these have no {name} of the shape {[*shape]}")


# --- Sets of flat indices of one tensor -----------------------------------------------------------------------------------
#
# Rows of int64 that rise strictly, the size of the tensor beside them.  Rows that hold much of a tensor are compared as booleans of
# all of it, the others by search: sorting both together, as torch's `isin` and `unique` do, takes many times as long.


def _union(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What either row has."""
    if len(mine) + len(theirs) > size // PART:
        return _marked(_marks(size, mine, theirs))
    return torch.cat([mine, theirs]).unique()


def _intersection(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What both rows have."""
    return theirs if len(mine) == size else mine[_is_in(mine, theirs, size)]


def _difference(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What the first row has and the second hasn't."""
    return _marked(~_marks(size, theirs)) if len(mine) == size else mine[~_is_in(mine, theirs, size)]


def _is_in(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """Which of the first row's are in the second; bool."""
    if len(theirs) > size // PART:
        return _marks(size, theirs)[mine]
    if not len(theirs):
        return torch.zeros(len(mine), dtype=torch.bool)
    return theirs[torch.searchsorted(theirs, mine).clamp_(max=len(theirs) - 1)] == mine


def _marks(size: int, *rows: Tensor) -> Tensor:
    marks = torch.zeros(size, dtype=torch.bool)
    for row in rows:
        marks[row] = True
    return marks


def _marked(marks: Tensor) -> Tensor:
    return torch.from_numpy(np.flatnonzero(marks.numpy()))  # faster than torch's
