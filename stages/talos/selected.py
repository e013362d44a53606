"""How much of each tensor a mask selects."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from stages.lib.metrics.composition import kind_of, layer_of


def by_tensor(counts: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Rows tensor, layer, kind, part (weight or bias), parameters, selected, share: one for each tensor of the region.

    counts: how many parameters of each tensor are selected, none where it isn't named.  `share` is of
    the tensor's own parameters, so its mean weighted by `parameters` is the sparsity of the mask.
    """
    rows = []
    for name, shape in shapes.items():
        inside, size = counts.get(name, 0), prod(shape)
        rows.append(
            {
                "tensor": name,
                "layer": layer_of(name),
                "kind": kind_of(name),
                "part": name.rpartition(".")[2],
                "parameters": size,
                "selected": inside,
                "share": inside / size,
            }
        )
    return rows
