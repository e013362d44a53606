"""Exactly the k highest-scored parameters, the same ones every time."""

from collections.abc import Callable

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Region, Tensors
from .running_selection import RunningSelection

TieBreak = Callable[[str, Tensor], Tensor]


def top_k(region: Region, scores: Tensors, k: int, tie_break: TieBreak | None = None) -> GraftMask:
    """The k parameters with the highest score over the whole region.

    Equal scores are ordered by `tie_break(name, flat indices)` (higher first), then by region index
    (lower first), so the result has exactly k members and masks of growing k are nested.  Raises ValueError if k is
    not within 0..region.size or a score is NaN.
    """
    if not 0 <= k <= region.size:
        raise ValueError(f"k must be within 0..{region.size}, not {k}")
    if k == 0:
        return GraftMask.empty(region)
    threshold = kth_largest(region, scores, k)
    above, tied = [], []
    for name, start in region.starts.items():
        flat = scores[name].reshape(-1)
        above.append(torch.nonzero(flat > threshold).reshape(-1).cpu() + start)
        tied.append(torch.nonzero(flat == threshold).reshape(-1).cpu() + start)
    sure, ties = torch.cat(above), torch.cat(tied)
    if tie_break is not None and len(ties) > 1:
        values = torch.cat([tie_break(name, indices).cpu() for name, indices in region.split(ties).items()])
        ties = ties[torch.sort(values, descending=True, stable=True).indices]
    return GraftMask.from_region_indices(region, torch.cat([sure, ties[: k - len(sure)]]))


def kth_largest(region: Region, scores: Tensors, k: int) -> Tensor:
    """The k-th largest score of the region, a scalar tensor; no copy of the whole region is made for it."""
    best = [scores[name].reshape(-1).topk(min(k, scores[name].numel()), sorted=False).values for name in region.shapes]
    merged = torch.cat(best)
    if bool(merged.isnan().any()):
        raise ValueError("scores must not be NaN")
    return merged.topk(k, sorted=False).values.min()


def ranking(region: Region, scores: Tensors, k: int) -> Tensor:
    """Region indices (int64, shape (k,)) of the k highest scores, highest first, ties by region index.

    Each tensor of scores is asked for once and forgotten.  Raises ValueError if k is not within 0..region.size or a
    score is NaN.
    """
    if not 0 <= k <= region.size:
        raise ValueError(f"k must be within 0..{region.size}, not {k}")
    chosen = RunningSelection(k)
    for name, start in region.starts.items():
        chosen.add(scores[name], start)
    return chosen.order()
