"""Layers of a region: their tensors, and the FIM score of each (Lodha et al., 2023).

The score is one number for each layer, from the diagonal of its Fisher information.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from skill_grafting.grafting.composition import layer_of
from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import ModelSpec
from skill_grafting.support.fields import LAYERS
from stages.text.models.encoding import Example
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.tasks.runtime import permuted


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


def by_layer(region: Region) -> dict[int, list[str]]:
    """Layer -> names of its tensors, layers rising; tensors outside the layers are left out.

    The number is read out of a name as a whole: a test of what the name starts with would take
    layer 10 for a part of layer 1.
    """
    names = sorted((name for name in region.shapes if layer_of(name) is not None), key=layer_of)
    return {layer: [*part] for layer, part in groupby(names, layer_of)}


def layers_of(anatomy: ModelSpec) -> dict[int, list[str]]:
    """Layer -> names of its tensors, those of the repeated blocks alone."""
    return by_layer(anatomy.region([LAYERS]))


def drawn_rows(examples: list[Example], task: str, seed: int) -> list[Example]:
    """The training examples of a cell in the order in which scores take them."""
    return permuted(examples, "fim", "rows", task, seed)


def scores_by_count(
    model: LabelModel, examples: list[Example], counts: Sequence[int], layers: dict[int, list[str]], target: str
) -> dict[int, dict[str, list[float]]]:
    """Number of examples -> aggregation -> scores of the layers, from the first so many examples.

    Each count goes on where the one before it stopped.  Counts beyond the examples there are don't
    come back, but for the smallest of them, which takes them all.
    """
    names = [name for part in layers.values() for name in part]
    totals: dict[str, Tensor] = {}
    by_count: dict[int, dict[str, list[float]]] = {}
    done = 0
    for count in sorted({*counts}):
        if done < len(examples):
            part = squared_gradients(model, examples[done:count], names, target)
            totals = {name: totals[name] + part[name] for name in names} if totals else part
            done = min(count, len(examples))
            by_count[count] = layer_scores(totals, done, layers)
    return by_count


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
