"""The union of regions (paper, section 5.1): one graft that should have the skills of a group of tasks."""

from collections.abc import Sequence

import torch

from stages.lib.graft.mask import GraftMask


def union(masks: Sequence[GraftMask]) -> GraftMask:
    """Everything that any of these masks selects.

    All masks of one joint model give an entry the same value, so there is nothing to be settled between
    them.  Raises ValueError if there are none, or if they are of different regions.
    """
    if not masks or any(mask.region != masks[0].region for mask in masks):
        raise ValueError("a union takes one mask or more, all of the same region")
    together = torch.cat([mask.region_indices() for mask in masks])
    return GraftMask.from_region_indices(masks[0].region, torch.unique(together))
