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

# numbers that are worked on together: on a processor as many as its cache holds of a few tensors (1 MiB of each in float32);
# elsewhere more, as each step has to be started there
CACHED, PART = 2**18, 2**22
# whole numbers of as many bytes as a number of a tensor has, by which bits are told
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NoNumberError(MaskError):
    """A score is no number to rank by."""


class Elementwise(LazyTensors):
    """Tensors by name, each number a function of those at its place in the sources, so that they can be had in pieces, too."""

    def __init__(self, names: Iterable[str], function: Callable[..., Tensor], *sources: Tensors) -> None:
        super().__init__(names, lambda name: function(*(source[name] for source in sources)))
        self._function, self._sources = function, sources

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor of a name laid end to end, a piece at a time, in order."""
        return (made for (made,) in self.parts(name, sources=False))

    def parts(self, name: str, sources: bool = True) -> Iterator[tuple[Tensor, ...]]:
        """Its pieces, each with those of the sources that it was made of."""
        for parts in pieces_of(name, *self._sources):
            made = self._function(*parts)
            yield from pieces(*(part.reshape(-1) for part in (made, *(parts if sources else ()))))


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
    tensors, size = tuple(tensor.detach() for tensor in tensors), piece_size(tensors[0].device.type)
    if not all(tensor.is_contiguous() for tensor in tensors):
        return iter([tensors])
    if tensors[0].numel() <= size:
        return iter([tuple(tensor.view(-1) for tensor in tensors)])
    return zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True)


def piece_size(device: str = "cpu") -> int:
    """How many numbers a piece has."""
    return CACHED if device == "cpu" else PART


def evenly(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Flat tensors laid end to end, in pieces of the usual size."""
    held, room = list[Tensor](), 0
    for part in parts:
        size, count = piece_size(part.device.type), part.numel()
        if not held and count == size:
            yield part
            continue
        if not held and (whole := count // size * size):
            yield from part[:whole].split(size)
            part = part[whole:]
        room = room or size
        while part.numel():
            held.append(part[:room])
            part, room = part[room:], room - held[-1].numel()
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
        if kept is None or kept.numel() < count or kept.dtype != kind or kept.device != like.device:
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


def best(
    region: Region, scores: Tensors, k: int, above: float | None = None, sources: bool = False
) -> tuple[Tensor, ...]:
    """The k highest scores of the region and their region indices (int64), which rise; of equal scores the lower index comes first.

    So there are exactly k, and masks of growing k are nested; fewer where scores have to be `above` a number.  Scores are asked for once, in
    pieces if they are `Elementwise` and else tensor by tensor, and forgotten but for those above the least of the k best so far, of which
    at most 2k and a piece are held.
    sources: of `Elementwise` scores the bits of what each of the k was made of are given, too (see `bits`), so that nothing is read for
    them again.  Raises ValueError if k is not within 0..region.size, NoNumberError if a score is NaN.
    """
    if not 0 <= k <= region.size:
        raise ValueError(f"k must be within 0..{region.size}, not {k}")
    if k == 0:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    held, least = _Held(k), None if above is None else torch.tensor(above)
    for start, part, *made_of in _parts(region, scores, sources):
        # what equals the least of k that came before has a higher index
        places = torch.arange(part.numel(), device=part.device) if least is None else _places(part, _is_above, least)
        held.add(places + start, *(one[places] for one in (part, *map(bits, made_of))))
        if held.count > 2 * k or (least is None and held.count >= k):
            least = held.keep_best()[1].min()
    indices, values, *rest = held.keep_best()
    return values, indices, *rest


class _Held:
    """What may be among the k best: region indices, which rise, scores, and what else belongs to these.

    It lies in memory that grows, and not in many small tensors.
    """

    def __init__(self, k: int) -> None:
        self._k, self.count = k, 0
        self._columns: list[Tensor] = []

    def add(self, *found: Tensor) -> None:
        """Hold some more; of several types in the widest."""
        end = self.count + found[0].numel()
        room = self._columns[0].numel() if self._columns else 0
        kinds = [
            torch.promote_types(*(side.dtype for side in both))
            for both in zip(found, self._columns or found, strict=True)
        ]
        if end > room or kinds != [column.dtype for column in self._columns]:
            size = max(end, min(2 * self.count, 2 * self._k + found[0].numel()))
            grown = [part.new_empty(size, dtype=kind) for part, kind in zip(found, kinds, strict=True)]
            for new, old in zip(grown, self._columns, strict=False):
                new[: self.count] = old[: self.count]
            self._columns = grown
        for column, part in zip(self._columns, found, strict=True):
            column[self.count : end] = part
        self.count = end

    def keep_best(self) -> list[Tensor]:
        """Forget all but the k best, and give these."""
        found = [column[: self.count] for column in self._columns]
        if (kept := _best_of(found[1], self._k)) is not None:
            self.count = kept.numel()
            for column in found:
                column[: self.count] = column[kept]
        return [column[: self.count] for column in self._columns]


def bits(values: Tensor) -> Tensor:
    """The bits of a tensor's numbers, of at most eight bytes, as whole numbers."""
    return values.view(BITS[values.itemsize])


def of_bits(found: Tensor, kind: torch.dtype) -> Tensor:
    """The numbers of a type that have these bits."""
    return found.to(BITS[kind.itemsize]).view(kind)


def _parts(region: Region, scores: Tensors, sources: bool) -> Iterator[tuple]:
    """Region index of the first of the scores that come next, these, flat, and what they were made of, if that is asked for."""
    for name, start in region.starts.items():
        made = isinstance(scores, Elementwise)
        for parts in scores.parts(name, sources) if made else pieces(scores[name].reshape(-1)):
            yield start, *parts
            start += parts[0].numel()


def _best_of(values: Tensor, k: int) -> Tensor | None:
    """Places of the k best, rising; None if these are all."""
    if bool(values.isnan().any()):
        raise NoNumberError("a score is no number (NaN)")
    if values.numel() <= k:
        return None
    least = _kth(values, k)
    places = _places(values, operator.ge, least)
    if surplus := places.numel() - k:  # the last of those that equal the least
        kept = torch.ones(places.numel(), dtype=torch.bool, device=places.device)
        kept[(values[places] == least).nonzero().reshape(-1)[-surplus:]] = False
        places = places[kept]
    return places


# On a processor numpy takes a third of torch's time for a comparison, and half of it to find the k-th highest.


def _numpy(scores: Tensor) -> np.ndarray:
    return (scores.float() if scores.itemsize < 4 else scores).numpy()  # it knows no bfloat16


def _places(scores: Tensor, compare: Callable, least: Tensor) -> Tensor:
    """Places of the scores that compare so with the least, rising."""
    if scores.device.type != "cpu":
        return compare(scores, least).nonzero().reshape(-1)
    return torch.from_numpy(np.flatnonzero(compare(_numpy(scores), least.item())))


def _is_above(scores: Tensor | np.ndarray, least: Tensor | float) -> Tensor | np.ndarray:
    """Which are above the least; NaN is, too, so that it is found."""
    below = scores <= least
    return np.logical_not(below, out=below) if isinstance(below, np.ndarray) else below.logical_not_()


def _kth(values: Tensor, k: int) -> Tensor:
    if values.device.type != "cpu":
        return values.topk(k, sorted=False).values.min()
    return torch.tensor(np.partition(_numpy(values), -k)[-k])
