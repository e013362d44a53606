"""Movement taken evenly: the same share of every layer, or of every tensor, at every k.

The parameter at place p (0, 1, ...) of its group of n by movement gets the score -(p + 1/2) / n.
The k highest scores are then the apportionment of k seats by Webster's method: there is one share s
such that each group gives s * n parameters, rounded to a neighbouring whole number.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..graft.region import Region, Tensors
from .evidence import Evidence
from .movement import movement_order


def even_scores(evidence: Evidence, group_of: Callable[[str], Hashable]) -> dict[str, Tensor]:
    """-(place within the group by movement + 1/2) / size of the group, float64, one array for each tensor."""
    groups: dict[Hashable, dict[str, tuple[int, ...]]] = {}
    for name, shape in evidence.region.shapes.items():
        groups.setdefault(group_of(name), {})[name] = shape
    scores = {}
    for shapes in groups.values():
        scores |= _group_scores(Region(shapes), evidence.pretrained, evidence.finetuned)
    return scores


def _group_scores(group: Region, pretrained: Tensors, finetuned: Tensors) -> dict[str, Tensor]:
    scores = torch.empty(group.size, dtype=torch.float64)
    order = movement_order(pretrained, finetuned, group, group.size)
    scores[order] = torch.arange(group.size, dtype=torch.float64).add_(0.5).div_(-group.size)
    return dict(zip(group.shapes, scores.split(group.sizes), strict=True))
