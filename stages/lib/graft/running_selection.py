"""The k highest of more scores than fit into memory, a part of them at a time.

What is kept are k candidates and one part.  The choice is that of `select.top_k`: exactly k, equal scores by region index,
whatever the order in which the parts come.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

# scores that are looked at together
PART = 2**22


class LazyTensors(Mapping):
    """Tensors by name, each made anew whenever it is asked for, so that there is only one at a time."""

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
    """The k best of all scores seen so far; holds fewer than 2k of them between two parts."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._scores: list[Tensor] = []
        self._indices: list[Tensor] = []
        self._least: Tensor | None = None

    def add(self, scores: Tensor, indices: int | Tensor) -> None:
        """Look at a tensor's scores; `indices`: of the region, or the first of a row.  ValueError if one is NaN."""
        flat = scores.detach().reshape(-1)
        for first in range(0, len(flat), PART):
            part = flat[first : first + PART]
            if bool(part.isnan().any()):
                raise ValueError("scores must not be NaN")
            # equal ones may win yet, by their index
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
        """Leave the k best of what is held."""
        scores, indices = torch.cat(self._scores), torch.cat(self._indices)
        if len(scores) > self._k:
            least = scores.topk(self._k, sorted=False).values.min()
            sure, tied = (torch.nonzero(one).reshape(-1).cpu() for one in (scores > least, scores == least))
            lowest = torch.sort(indices[tied]).indices[: self._k - len(sure)]
            kept = torch.cat([sure, tied[lowest]])
            scores, indices, self._least = scores[kept.to(scores.device)], indices[kept], least
        self._scores, self._indices = [scores], [indices]
