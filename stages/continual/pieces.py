"""Regions that grow task by task and never change what is already there (paper, section 5.2 and appendix C.3).

With gamma_n the region of the n-th task of a sequence, training for it moves

    gamma_n without the union of gamma_i, i < n

alone, and the model for task n is the graft of the union of gamma_i, i <= n.  So what later tasks
train is never part of an earlier task's model: nothing is forgotten, whatever the data are.  It takes
the pretrained model and, for each task, its piece: which parameters it got, their values, and the
place of the task in the sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.lib.graft.apply import transplant
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Tensors


@dataclass(frozen=True)
class Piece:
    """What one task adds: the parameters that are its own, their trained values, and its head if it has one."""

    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]


def remainder(mask: GraftMask, earlier: Sequence[GraftMask]) -> GraftMask:
    """What no earlier mask selects of a mask.  Raises ValueError if they are of different regions."""
    if any(other.region != mask.region for other in earlier):
        raise ValueError("masks of different regions have nothing in common")
    mine = mask.region_indices()
    for other in earlier:
        mine = mine[~torch.isin(mine, other.region_indices(), assume_unique=True)]
    return GraftMask.from_region_indices(mask.region, mine)


def put_together(pretrained: Tensors, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """The region's tensors with every piece in them: the graft of their union.  Inputs stay as they are."""
    region = {name: values.detach() for name, values in pretrained.items()}
    for piece in pieces:
        region = transplant(region, piece.values, piece.mask)
    return region
