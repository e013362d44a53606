"""Movement taken evenly: the same share of every layer, or of every tensor, at every k.

The parameter at place p (0, 1, ...) of its group of n by movement gets the score -(p + 1/2) / n.
The k highest scores are then the apportionment of k seats by Webster's method: there is one share s
such that each group gives s * n parameters, rounded to a neighbouring whole number.
"""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..graft.running_selection import RunningSelection
from .evidence import Evidence
from .movement import movement


def rank_evenly(evidence: Evidence, group_of: Callable[[str], Hashable], k: int) -> Tensor:
    """Region indices of k parameters, an equal share of each group of tensors; k candidates are held for each group."""
    region = evidence.region
    moved = movement(evidence.pretrained, evidence.finetuned, region)
    sizes: Counter[Hashable] = Counter()
    furthest: dict[Hashable, RunningSelection] = {}
    for name, start, size in zip(region.shapes, region.starts, region.sizes, strict=True):
        sizes[group_of(name)] += size
        furthest.setdefault(group_of(name), RunningSelection(k)).add(moved[name], start)
    chosen = RunningSelection(k)
    for group, selection in furthest.items():
        order = selection.order()
        places = torch.arange(len(order), dtype=torch.float64)
        chosen.add(places.add_(0.5).div_(-sizes[group]), order)
    return chosen.order()
