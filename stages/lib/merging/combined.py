"""The pretrained model moved along several task vectors at once, each by a coefficient of its own."""

from collections.abc import Mapping

from torch import Tensor

from stages.lib.graft.region import Tensors
from stages.lib.merging.arithmetic import add, shifted


def combined(
    pretrained: Tensors, vectors: Mapping[str, Tensors], coefficients: Mapping[str, float]
) -> dict[str, Tensor]:
    """pretrained + sum of coefficient * vector over the named vectors: new tensors of the type of `pretrained`.

    A coefficient of 0 is as good as none, so that points on an axis are those of a single vector, bit for bit.
    """
    moved = {name: alpha for name, alpha in coefficients.items() if alpha != 0}
    if not moved:
        return shifted(pretrained, {}, 0)
    if len(moved) == 1:
        [(name, alpha)] = moved.items()
        return shifted(pretrained, vectors[name], alpha)
    scaled = {name: {key: alpha * values for key, values in vectors[name].items()} for name, alpha in moved.items()}
    return shifted(pretrained, add(scaled))
