"""Sets of flat indices of a tensor: rows of int64 that rise strictly, the size of the tensor beside them.

Rows that hold much of a tensor are compared as booleans of all of it, the others by search: sorting both together, as torch's `isin`
and `unique` do, takes many times as long.
"""

import numpy as np
import torch
from torch import Tensor

# booleans pay where rows hold more than this part of the tensor
PART = 64


def union(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What either row has."""
    if len(mine) + len(theirs) > size // PART:
        return _marked(_marks(size, mine, theirs))
    return torch.cat([mine, theirs]).unique()


def intersection(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What both rows have."""
    return theirs if len(mine) == size else mine[_is_in(mine, theirs, size)]


def difference(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """What the first row has and the second hasn't."""
    return _marked(~_marks(size, theirs)) if len(mine) == size else mine[~_is_in(mine, theirs, size)]


def _is_in(mine: Tensor, theirs: Tensor, size: int) -> Tensor:
    """Which of the first row's are in the second; bool."""
    if len(theirs) > size // PART:
        return _marks(size, theirs)[mine]
    if not len(theirs):
        return torch.zeros(len(mine), dtype=torch.bool)
    return theirs[torch.searchsorted(theirs, mine).clamp_(max=len(theirs) - 1)] == mine


def _marks(size: int, *rows: Tensor) -> Tensor:
    marks = torch.zeros(size, dtype=torch.bool)
    for row in rows:
        marks[row] = True
    return marks


def _marked(marks: Tensor) -> Tensor:
    return torch.from_numpy(np.flatnonzero(marks.numpy()))  # faster than torch's
