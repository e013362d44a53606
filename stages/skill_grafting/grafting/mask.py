"""GraftMask: which parameters a graft takes from the fine-tuned model.

This is the contract of every localizer (movement, learned, random, bias-only, FISH, TaLoS, ...):
whatever it looks at, it gives a GraftMask over a Region, with

* `indices`: tensor name -> sorted flat indices, int64, shape (number selected in that tensor,),
  tensors without a selected parameter left out;
* exactly as many parameters as it was asked for, unless it documents "at most";
* the same result for the same input, ties included.

A mask file is enough to rebuild a graft from the pretrained model.  It is one safetensors file with, for each tensor that has a
selected parameter, `indices/<name>` (flat indices, int32, or int64 in tensors of 2^31 and more) and `values/<name>` (the fine-tuned
values there), and `head/<name>` for a trained head, which has no pretrained values to be grafted onto.  Its header names the region,
the model (with a fingerprint), the task, the seed, k, both denominators and the rule.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..support.errors import MaskError, ModelError, ParamsError, StorageError
from ..support.writing import replacing
from .region import FORMAT, VERSION, Region, Tensors

# dtypes of selected values and heads: a base model in float32 holds them all exactly
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# and of heads and buffers, which travel whole
WHOLE = (*FLOATS, torch.int64, torch.int32)
# largest tensor whose indices are stored in four bytes
INT32_LIMIT = 2**31


@dataclass(frozen=True, eq=False, repr=False)
class GraftMask:
    """A set of selected parameters of a region, with the operators of sets: `|`, `&`, `-`, `~`, `len` and `==`.

    indices: for each tensor with selected parameters its sorted flat indices, int64; record: how the mask was found (method, settings,
    losses by step, the step that was kept).
    """

    region: Region
    indices: dict[str, Tensor]
    record: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
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

    def __and__(self, other: "GraftMask") -> "GraftMask":
        """What both masks select; raises MaskError unless they are of one region."""
        return self._joined(other, lambda mine, theirs: mine[torch.isin(mine, theirs)])

    def __or__(self, other: "GraftMask") -> "GraftMask":
        """What either mask selects; raises MaskError unless they are of one region."""
        return self._joined(other, lambda mine, theirs: torch.cat([mine, theirs]).unique())

    def __sub__(self, other: "GraftMask") -> "GraftMask":
        """What this mask selects and the other doesn't; raises MaskError unless they are of one region."""
        return self._joined(other, lambda mine, theirs: mine[~torch.isin(mine, theirs)])

    def __invert__(self) -> "GraftMask":
        """What this mask doesn't select."""
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
        if Path(path).is_dir():
            raise StorageError(f"{path}: is a folder, which a file won't replace; choose another name")
        write_mask(Path(path), StoredMask(self, {}, {}, {"found": self.record}))

    def __repr__(self) -> str:
        return f"GraftMask({self.selected:,} of {self.region.size:,} parameters, in {len(self.indices)} tensors)"

    def _counted(self) -> dict[str, int]:
        """`counts` of tensors of which something is selected."""
        return {name: count for name, count in self.counts.items() if count}

    def _joined(self, other: "GraftMask", join: Callable[[Tensor, Tensor], Tensor]) -> "GraftMask":
        if not isinstance(other, GraftMask):
            return NotImplemented
        if self.region.shapes != other.region.shapes:
            raise MaskError("the masks are of two regions: localize both with the same parameters= and heads=")
        nothing = torch.empty(0, dtype=torch.int64)
        names = [name for name in self.region.shapes if name in self.indices or name in other.indices]
        made = {name: join(self.indices.get(name, nothing), other.indices.get(name, nothing)) for name in names}
        heads = sorted(named_heads(self) | named_heads(other))  # what was named as a head of either stays one
        return GraftMask(
            self.region,
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
        raise ParamsError(f"mask: should be a GraftMask, not a {type(mask).__name__}")
    for name, shape in mask.region.shapes.items():
        if name not in weights or weights[name].shape != shape:
            raise ModelError(f"the mask is of other models: these have no {name} of the shape {[*shape]}")


@dataclass(frozen=True)
class StoredMask:
    """A mask with the values it selects, the trained head if there is one, and where it comes from."""

    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]
    about: dict[str, Any]


def write_mask(path: Path, stored: StoredMask) -> None:
    """Write a mask file, without values if there are none; equal masks give equal bytes."""
    mask, region = stored.mask, stored.mask.region
    small = {name: prod(shape) < INT32_LIMIT for name, shape in region.shapes.items()}
    tensors = {f"head/{name}": whole.contiguous() for name, whole in stored.head.items()}
    kinds = {name: torch.int32 if small[name] else torch.int64 for name in mask.indices}
    tensors |= {f"indices/{name}": at.to(kinds[name], copy=True) for name, at in mask.indices.items()}
    tensors |= {f"values/{name}": stored.values[name].contiguous() for name in mask.indices if stored.values}
    header = {**stored.about, "format": FORMAT, "version": VERSION, "selected": mask.selected}
    header |= {"graftable": region.size, "sparsity": mask.sparsity}
    header["shapes"] = {name: list(shape) for name, shape in region.shapes.items()}
    # only the top level is sorted: the order of `shapes` is the order of the region
    metadata = {"graft": json.dumps(dict(sorted(header.items())))}
    with replacing(path) as partial:
        save_file(tensors, partial, metadata=metadata)
