"""Selects exactly the k parameters with the highest scores, deterministically, also from more scores than fit into memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from .mask import GraftMask
from .region import Region, Tensors

TieBreak = Callable[[str, Tensor], Tensor]
# scores per part
PART = 2**22


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
    parts = [(start, *_at_least(scores[name].reshape(-1), threshold)) for name, start in region.starts.items()]
    sure, ties = (torch.cat([part[kind] + part[0] for part in parts]) for kind in (1, 2))
    if tie_break is not None and len(ties) > 1:
        values = torch.cat([tie_break(name, indices).cpu() for name, indices in region.split(ties).items()])
        ties = ties[torch.sort(values, descending=True, stable=True).indices]
    return GraftMask.from_region_indices(region, torch.cat([sure, ties[: k - len(sure)]]))


def _at_least(scores: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the scores above the least, and of those equal to it, both rising; copied from the device at once."""
    places = torch.nonzero(scores >= least).reshape(-1)
    places, above = torch.stack([places, (scores[places] > least).to(places.dtype)]).cpu()
    return places[above == 1], places[above == 0]


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


class LazyTensors(Mapping):
    """Tensors by name, each computed on access, so that only one is in memory at a time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Tensor:
        """The tensor; raises KeyError for an unknown name."""
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._names)

    def __len__(self) -> int:
        """Number of names."""
        return len(self._names)


class RunningSelection:
    """The k best of all scores seen so far, those of `top_k`, whatever the order in which they come.

    It holds fewer than 2k of them between two parts.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._scores: list[Tensor] = []
        self._indices: list[Tensor] = []
        self._least: Tensor | None = None

    def add(self, scores: Tensor, indices: int | Tensor) -> None:
        """Add scores; `indices`: their region indices, or the first of a contiguous range.  ValueError if a score is NaN."""
        flat = scores.detach().reshape(-1)
        for first in range(0, len(flat), PART):
            part = flat[first : first + PART]
            if bool(part.isnan().any()):
                raise ValueError("scores must not be NaN")
            # equal scores may still win by their index
            usable = torch.ones_like(part) if self._least is None else part >= self._least
            places = torch.nonzero(usable).reshape(-1)
            numbers = places.cpu() + first + indices if isinstance(indices, int) else indices[places.cpu() + first]
            if len(places) and self._k:
                self._scores.append(part[places].clone())
                self._indices.append(numbers)
            if sum(map(len, self._scores)) >= 2 * self._k > 0:
                self._shrink()

    def order(self) -> Tensor:
        """Region indices (int64) of the k highest, highest first, ties by region index; all if there are fewer."""
        if not self._scores or self._k == 0:
            return torch.empty(0, dtype=torch.int64)
        self._shrink()
        scores, indices = self._scores[0], self._indices[0]
        rising = torch.sort(indices).indices
        best = torch.sort(scores[rising.to(scores.device)], descending=True, stable=True).indices.cpu()
        return indices[rising][best]

    def _shrink(self) -> None:
        """Keep the k best."""
        scores, indices = torch.cat(self._scores), torch.cat(self._indices)
        if len(scores) > self._k:
            least = scores.topk(self._k, sorted=False).values.min()
            sure, tied = _at_least(scores, least)
            lowest = torch.sort(indices[tied]).indices[: self._k - len(sure)]
            kept = torch.cat([sure, tied[lowest]])
            scores, indices, self._least = scores[kept.to(scores.device)], indices[kept], least
        self._scores, self._indices = [scores], [indices]
