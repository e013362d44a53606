"""Selects exactly the k parameters with the highest scores, deterministically, also from more scores than fit into memory."""

import operator
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..support.errors import MaskError
from .apply import taken
from .mask import GraftMask
from .region import LazyTensors, Region, Tensors, outline

# numbers that are worked on together: on a processor as many as its cache holds of a few tensors (1 MiB of each in float32), for
# each of its threads; elsewhere more, as each step has to be started there
CACHED, PART = 2**18, 2**22


class NoNumberError(MaskError):
    """A score is no number to rank by."""


class Elementwise(LazyTensors):
    """Tensors by name, each number a function of those at its place in the sources, so that they can be had in pieces, too."""

    def __init__(self, names: Iterable[str], function: Callable[..., Tensor], *sources: Tensors) -> None:
        super().__init__(names, lambda name: function(*(source[name] for source in sources)))
        self._function, self._sources = function, sources

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor of a name laid end to end, a piece at a time, in order."""
        return evenly(self._function(*parts).reshape(-1) for parts in pieces_of(name, *self._sources))


class Converted(LazyTensors):
    """The tensors of a source, each of them or each piece converted by a function of its name and values."""

    def __init__(
        self, source: Tensors, convert: Callable[[str, Tensor], Tensor], names: Iterable[str] | None = None
    ) -> None:
        super().__init__(source if names is None else names, lambda name: convert(name, source[name]))
        self._source, self._convert = source, convert

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor of a name laid end to end, a piece at a time, in order."""
        return evenly(self._convert(name, part).reshape(-1) for (part,) in pieces_of(name, self._source))

    def outline(self, name: str) -> Tensor:
        """A tensor of its type and shape."""
        return self._convert(name, outline(self._source, name))

    def take(self, name: str, indices: Tensor) -> Tensor:
        """The values at flat indices of a tensor."""
        return self._convert(name, taken(self._source, name, indices))


def pieces_of(name: str, *sources: Tensors) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of the tensors of one name in several sources, of the same places of each; of what can be had in pieces no more is made."""
    if not any(hasattr(source, "pieces") for source in sources):
        return pieces(*(source[name] for source in sources))
    parts = (
        source.pieces(name) if hasattr(source, "pieces") else evenly([source[name].detach().reshape(-1)])
        for source in sources
    )
    return zip(*parts, strict=True)


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of tensors of one shape, of the same places of each and in order, which may be written to; whole ones if they aren't contiguous.

    What is done to a piece finds it in the cache, where what is done to whole tensors reads and writes all of them each time.
    """
    tensors = tuple(tensor.detach() for tensor in tensors)
    if not all(tensor.is_contiguous() for tensor in tensors):
        return iter([tensors])
    return zip(*(tensor.view(-1).split(piece_size(tensors[0].device.type)) for tensor in tensors), strict=True)


def piece_size(device: str = "cpu") -> int:
    """How many numbers a piece has."""
    return CACHED * torch.get_num_threads() if device == "cpu" else PART


def evenly(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Flat tensors laid end to end, in pieces of the usual size."""
    held, room = list[Tensor](), 0
    for part in parts:
        size = piece_size(part.device.type)
        if not held and (whole := len(part) // size * size):
            yield from part[:whole].split(size)
            part = part[whole:]
        room = room or size
        while len(part):
            held.append(part[:room])
            part, room = part[room:], room - len(held[-1])
            if not room:
                yield held[0] if len(held) == 1 else torch.cat(held)
                held, room = [], size
    if held:
        yield held[0] if len(held) == 1 else torch.cat(held)


class Scratch:
    """Memory for what is forgotten soon and made again piece by piece: new memory costs more than the arithmetic in it."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, use: str, like: Tensor, kind: torch.dtype) -> Tensor:
        """A tensor of the shape of `like` and any values; the next one for the same use lies in the same memory."""
        kept, count = self._kept.get(use), like.numel()
        if kept is None or len(kept) < count or kept.dtype != kind or kept.device != like.device:
            kept = self._kept[use] = torch.empty(count, dtype=kind, device=like.device)
        return kept if kept.shape == like.shape else kept[:count].view(like.shape)


def top_k(region: Region, scores: Tensors, k: int) -> GraftMask:
    """The mask of the k parameters with the highest score; see `best`."""
    return GraftMask.from_region_indices(region, best(region, scores, k)[1])


def ranking(region: Region, scores: Tensors, k: int, above: float | None = None) -> Tensor:
    """Region indices (int64, shape (k,)) of the k highest scores, highest first, ties by region index; see `best`."""
    return ordered(*best(region, scores, k, above))


def ordered(values: Tensor, indices: Tensor) -> Tensor:
    """What `best` gives as a ranking."""
    return indices[torch.sort(values, descending=True, stable=True).indices].cpu()


def best(region: Region, scores: Tensors, k: int, above: float | None = None) -> tuple[Tensor, Tensor]:
    """The k highest scores of the region and their region indices (int64), which rise; of equal scores the lower index comes first.

    So there are exactly k, and masks of growing k are nested; fewer where scores have to be `above` a number.  Scores are asked for once, in
    pieces if they are `Elementwise` and else tensor by tensor, and forgotten but for those above the least of the k best so far, of which
    at most 2k and a piece are held.
    Raises ValueError if k is not within 0..region.size, NoNumberError if a score is NaN.
    """
    if not 0 <= k <= region.size:
        raise ValueError(f"k must be within 0..{region.size}, not {k}")
    if k == 0:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    held, least = _Held(k), None if above is None else torch.tensor(above)
    for start, part in _parts(region, scores):
        # what equals the least of k that came before has a higher index
        places = torch.arange(len(part), device=part.device) if least is None else _places(part, _above, least)
        held.add(part, places, start)
        if held.count > 2 * k or (least is None and held.count >= k):
            least = held.keep_best()[0].min()
    return held.keep_best()


class _Held:
    """Scores that may be among the k best, with their region indices, which rise: in memory that grows, and not in many small tensors."""

    def __init__(self, k: int) -> None:
        self._k, self.count = k, 0
        self._values: Tensor | None = None
        self._indices = torch.empty(0, dtype=torch.int64)

    def add(self, part: Tensor, places: Tensor, start: int) -> None:
        """Hold the scores at some places of a part that begins at a region index; of parts of several types in the widest."""
        end, held = self.count + len(places), self._values
        kind = part.dtype if held is None else torch.promote_types(part.dtype, held.dtype)
        if held is None or end > len(held) or kind != held.dtype:
            self._grow(max(end, min(2 * self.count, 2 * self._k + len(part))), part.to(kind))
        self._values[self.count : end] = part[places]
        torch.add(places, start, out=self._indices[self.count : end])
        self.count = end

    def keep_best(self) -> tuple[Tensor, Tensor]:
        """Forget all but the k best; gives these, and their region indices."""
        values, indices = _best_of(self._values[: self.count], self._indices[: self.count], self._k)
        if len(values) < self.count:
            self.count = len(values)
            self._values[: self.count], self._indices[: self.count] = values, indices
        return values, indices

    def _grow(self, size: int, like: Tensor) -> None:
        values, indices = like.new_empty(size), like.new_empty(size, dtype=torch.int64)
        if self.count:
            values[: self.count], indices[: self.count] = self._values[: self.count], self._indices[: self.count]
        self._values, self._indices = values, indices


def _parts(region: Region, scores: Tensors) -> Iterator[tuple[int, Tensor]]:
    """Region index of the first of the scores that come next, and these, flat."""
    for name, start in region.starts.items():
        made = isinstance(scores, Elementwise)
        for part in scores.pieces(name) if made else (part for (part,) in pieces(scores[name].reshape(-1))):
            yield start, part
            start += len(part)


def _best_of(values: Tensor, indices: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if bool(values.isnan().any()):
        raise NoNumberError("a score is no number (NaN)")
    if len(values) <= k:
        return values, indices
    least = _kth(values, k)
    places = _places(values, operator.ge, least)
    values = values[places]
    if surplus := len(places) - k:  # the last of those that equal the least
        kept = torch.ones(len(places), dtype=torch.bool, device=places.device)
        kept[(values == least).nonzero().reshape(-1)[-surplus:]] = False
        values, places = values[kept], places[kept]
    return values, indices[places]


# On a processor numpy takes a third of torch's time for a comparison, and half of it to find the k-th highest.


def _numpy(scores: Tensor) -> np.ndarray:
    return (scores.float() if scores.itemsize < 4 else scores).numpy()  # it knows no bfloat16


def _places(scores: Tensor, compare: Callable, least: Tensor) -> Tensor:
    """Places of the scores that compare so with the least, rising."""
    if scores.device.type != "cpu":
        return compare(scores, least).nonzero().reshape(-1)
    return torch.from_numpy(np.flatnonzero(compare(_numpy(scores), least.item())))


def _above(scores: Tensor | np.ndarray, least: Tensor | float) -> Tensor | np.ndarray:
    """Which are above the least; NaN is, too, so that it is found."""
    return ~(scores <= least)


def _kth(values: Tensor, k: int) -> Tensor:
    if values.device.type != "cpu":
        return values.topk(k, sorted=False).values.min()
    return torch.tensor(np.partition(_numpy(values), -k)[-k])
