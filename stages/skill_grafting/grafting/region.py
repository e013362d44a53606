"""The parameters that may be grafted, in a fixed order, and how they are numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from ..support.errors import MaskError, ParamsError, a_kind

if TYPE_CHECKING:  # the plan needs sizes only, and importing torch would take most of its time
    from torch import Tensor
    from torch.nn import Module, Parameter

Tensors = Mapping[str, "Tensor"]
# names of parameters or modules, as such or as glob patterns (`encoder.*.weight`), or a predicate of the parameter's name
Parameters = str | Sequence[str] | Callable[[str], bool] | None


class LazyTensors(Mapping):
    """Tensors by name, each computed on access, so that only one is in memory at a time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Tensor:
        """The tensor; raises KeyError for an unknown name."""
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor, which isn't computed for it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._names)

    def __len__(self) -> int:
        """Number of names."""
        return len(self._names)


def outline(tensors: Tensors, name: str) -> Tensor:
    """The tensor of a name, or one without values of its type and shape where that spares reading it; KeyError for an unknown name."""
    return tensors.outline(name) if hasattr(tensors, "outline") else tensors[name]


def unwrapped(model: Module) -> Module:
    """The module itself inside torch.compile, DataParallel, DistributedDataParallel and AveragedModel."""
    from torch import nn
    from torch.optim.swa_utils import AveragedModel

    if not isinstance(model, nn.Module):
        raise ParamsError(f"the model should be a torch module, not {a_kind(model)}")
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel | AveragedModel):
            model = model.module
        else:
            return model


def named_weights(model: Module) -> dict[str, Parameter]:
    """Every parameter of a model by the name that `save_pretrained` writes it under: where two parts share one, that in the backbone.

    torch takes the first part's name, and XLM-RoBERTa has its vocabulary head before the embeddings.
    """
    model = unwrapped(model)
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    names: dict[Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight not in names or (name.startswith(inside) and not names[weight].startswith(inside)):
            names[weight] = name
    return {name: weight for weight, name in names.items()}


def output_of(model: Module | None) -> Module | None:
    """What computes the logits of a model's vocabulary, by transformers' own word; None of a model that has no such part."""
    from torch import nn

    output = getattr(model, "get_output_embeddings", lambda: None)()
    return output if isinstance(output, nn.Module) else None


@dataclass(frozen=True)
class Region:
    """Names and shapes of the graftable parameters.

    A parameter has a *flat index* inside its tensor and a *region index* over all tensors laid end
    to end in the order of `shapes`.
    """

    shapes: dict[str, tuple[int, ...]]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of parameters of each tensor, in order."""
        return [prod(shape) for shape in self.shapes.values()]

    @cached_property
    def starts(self) -> dict[str, int]:
        """Region index of each tensor's first parameter, by its name, in order."""
        return dict(zip(self.shapes, accumulate(self.sizes, initial=0), strict=False))

    @property
    def size(self) -> int:
        """Number of graftable parameters, the denominator of sparsity."""
        return sum(self.sizes)

    def joined(self, other: Region) -> Region:
        """The tensors of both regions; MaskError if one of them has two shapes."""
        shapes = {**self.shapes, **other.shapes}
        if strange := [name for name, shape in self.shapes.items() if shapes[name] != shape]:
            sizes = " and ".join(str([*side.shapes[strange[0]]]) for side in (self, other))
            raise MaskError(f"the masks are of other models: {strange[0]} is {sizes}")
        return Region(shapes)

    def budget(self, sparsity: float) -> int:
        """Number of parameters that `sparsity` allows: floor(sparsity * size).

        The tiny addition undoes binary rounding, as in 0.29 * 100 = 28.999999999999996.
        """
        return int(sparsity * self.size + 1e-6)

    def split(self, region_indices: Tensor) -> dict[str, Tensor]:
        """Sorted flat indices (int64) by tensor, from region indices; MaskError unless they are whole numbers within 0..size - 1."""
        import torch

        if region_indices.is_floating_point() or region_indices.is_complex() or region_indices.dtype == torch.bool:
            raise MaskError(f"region indices must be whole numbers, not {region_indices.dtype}")
        indices = region_indices.to("cpu", torch.int64)
        row = indices.numpy()  # which compares faster than torch
        if (row[1:] < row[:-1]).any():
            indices = torch.sort(indices).values
        if len(indices) and (indices[0] < 0 or indices[-1] >= self.size):
            raise MaskError(f"region indices must be within 0..{self.size - 1}")
        bounds = torch.searchsorted(indices, torch.tensor([*self.starts.values(), self.size]))
        parts = {}
        for (name, start), first, end in zip(self.starts.items(), bounds, bounds[1:], strict=False):
            if end > first:
                parts[name] = indices[first:end] - start
        return parts

    def flatten(self, tensors: Tensors) -> Tensor:
        """All values of the region laid end to end, shape (size,)."""
        import torch

        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])
