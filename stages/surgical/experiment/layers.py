"""Layers of a region: their tensors, their masks, and the FIM score of each (Lodha et al., 2023).

The score is one number for each layer, from the diagonal of its Fisher information.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import prod

import torch
from torch import Tensor

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.metrics.composition import layer_of


def _sum(numbers: Iterable[Tensor]) -> Tensor:
    return torch.stack([*numbers]).sum()


# Each takes the mean squared gradients of a layer's tensors, in float64.
AGGREGATIONS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    # sum over tensors of each one's Frobenius norm, as in the authors' code
    "sum_fro": lambda tensors: _sum(tensor.square().sum().sqrt() for tensor in tensors),
    # the norm of the whole layer as one vector
    "fro_concat": lambda tensors: _sum(tensor.square().sum() for tensor in tensors).sqrt(),
    "trace": lambda tensors: _sum(tensor.sum() for tensor in tensors),
    "mean": lambda tensors: _sum(tensor.sum() for tensor in tensors) / sum(tensor.numel() for tensor in tensors),
}


def layer_scores(
    squares: Mapping[str, Tensor], examples: int, layers: Mapping[int, Sequence[str]]
) -> dict[str, list[float]]:
    """Aggregation -> the score of every layer, in the order of `layers`.

    squares: name -> sum over `examples` examples of the squared gradient of each.  They are averaged
    for each tensor before any norm is taken, so that the number of examples doesn't change the scale.
    """
    means = {name: squares[name].double() / examples for names in layers.values() for name in names}
    return {
        label: [float(aggregate([means[name] for name in names])) for names in layers.values()]
        for label, aggregate in AGGREGATIONS.items()
    }


def layer_norms(tensors: Mapping[str, Tensor], layers: Mapping[int, Sequence[str]]) -> list[float]:
    """Euclidean norm of each layer, all its tensors taken as one vector."""
    norm = AGGREGATIONS["fro_concat"]
    return [float(norm([tensors[name].double() for name in names])) for names in layers.values()]


def by_layer(region: Region) -> dict[int, list[str]]:
    """Layer -> names of its tensors, layers rising; tensors outside the layers are left out.

    The number is read out of a name as a whole: a test of what the name starts with would take
    layer 10 for a part of layer 1.
    """
    names = sorted((name for name in region.shapes if layer_of(name) is not None), key=layer_of)
    return {layer: [*part] for layer, part in groupby(names, layer_of)}


def whole_layers(region: Region, layers: Sequence[int], besides: Sequence[str] = ()) -> GraftMask:
    """Everything in these layers, and in the tensors named `besides`; raises ValueError for a layer that isn't there."""
    tensors = by_layer(region)
    strange = [layer for layer in layers if layer not in tensors]
    if strange:
        raise ValueError(f"there is no layer {strange[0]}; the region has {len(tensors)}")
    names = {*besides, *(name for layer in layers for name in tensors[layer])}
    return GraftMask(
        region, {name: torch.arange(prod(shape)) for name, shape in region.shapes.items() if name in names}
    )
