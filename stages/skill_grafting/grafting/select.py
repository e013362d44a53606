"""Selects exactly the k parameters with the highest scores, deterministically, also from more scores than fit into memory."""

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Region, Tensors

# scores that are looked at together
PART = 2**22


def top_k(region: Region, scores: Tensors, k: int) -> GraftMask:
    """The mask of the k parameters with the highest score; see `best`."""
    return GraftMask.from_region_indices(region, best(region, scores, k)[1])


def ranking(region: Region, scores: Tensors, k: int) -> Tensor:
    """Region indices (int64, shape (k,)) of the k highest scores, highest first, ties by region index; see `best`."""
    values, indices = best(region, scores, k)
    return indices[torch.sort(values, descending=True, stable=True).indices].cpu()


def best(region: Region, scores: Tensors, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of the region and their region indices (int64), which rise; of equal scores the lower index comes first.

    So there are exactly k, and masks of growing k are nested.  Each tensor of scores is asked for once and forgotten, and at most 2k
    and a part of the others are held.  Raises ValueError if k is not within 0..region.size or a score is NaN.
    """
    if not 0 <= k <= region.size:
        raise ValueError(f"k must be within 0..{region.size}, not {k}")
    held: list[tuple[Tensor, Tensor]] = []
    least: Tensor | None = None
    for name, start in region.starts.items():
        flat = scores[name].detach().reshape(-1)
        for first in range(0, len(flat), PART):
            part = flat[first : first + PART]
            if bool(part.isnan().any()):
                raise ValueError("scores must not be NaN")
            # what equals the least of k that came before has a higher index
            places = _highest(part, k) if least is None else (part > least).nonzero().reshape(-1)
            held.append((part[places], places + (start + first)))
            if sum(len(values) for values, _ in held) > 2 * k:
                held = [_joined(held, k)]
                least = held[0][0].min() if k else None
    return _joined(held, k)


def _joined(held: list[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    values, indices = (torch.cat(parts) for parts in zip(*held, strict=True))
    places = _highest(values, k)
    return values[places], indices[places]


def _highest(scores: Tensor, k: int) -> Tensor:
    """Places of the k highest scores, or of all if there are fewer, rising; of equal ones the first."""
    if k >= len(scores) or k == 0:
        return torch.arange(min(k, len(scores)), device=scores.device)
    least = scores.topk(k, sorted=False).values.min()
    chosen = scores > least
    chosen[(scores == least).nonzero().reshape(-1)[: k - int(chosen.sum())]] = True
    return chosen.nonzero().reshape(-1)
