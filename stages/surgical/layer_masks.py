"""The parameters of whole layers."""

from collections.abc import Sequence
from math import prod

import torch

from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Region
from stages.lib.metrics.composition import layer_of


def by_layer(region: Region) -> dict[int, list[str]]:
    """Layer -> names of its tensors, layers rising; tensors outside the layers are left out.

    The number is read out of a name as a whole: a test of what the name starts with would take
    layer 10 for a part of layer 1.
    """
    found: dict[int, list[str]] = {}
    for name in region.shapes:
        if (layer := layer_of(name)) is not None:
            found.setdefault(layer, []).append(name)
    return dict(sorted(found.items()))


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
