"""FIM score: one number for each layer, from the diagonal of its Fisher information (Lodha et al., 2023)."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

# Each takes the mean squared gradients of a layer's tensors, in float64.
Aggregation = Callable[[list[Tensor]], Tensor]


def _concatenated(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()


def _trace(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.sum() for tensor in tensors]).sum()


AGGREGATIONS: dict[str, Aggregation] = {
    # sum over tensors of each one's Frobenius norm, as in the authors' code
    "sum_fro": lambda tensors: torch.stack([tensor.square().sum().sqrt() for tensor in tensors]).sum(),
    # the norm of the whole layer as one vector
    "fro_concat": _concatenated,
    "trace": _trace,
    "mean": lambda tensors: _trace(tensors) / sum(tensor.numel() for tensor in tensors),
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
    return [float(_concatenated([tensors[name].double() for name in names])) for names in layers.values()]
