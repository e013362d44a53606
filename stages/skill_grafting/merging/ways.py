"""What each way of merging makes of the tasks' vectors: which entries of each stay, how these are joined, and what they are divided by.

    average, arithmetic   all stay; the sum, divided by the tasks' weights or as it is
    ties        those that moved furthest; where signs disagree, the sign with more movement wins and the mean of those who have it
                stays (Yadav et al., 2023)
    dare, dare_ties       a random share, scaled up by 1 / share (Yu et al., 2024); the sum, or by the elected sign
    della, della_linear   as dare, but within a row the further an entry moved the likelier it stays, and 1 / its own chance scales it
                (Deep et al., 2024, MagPrune); by the elected sign, or the sum
    breadcrumbs, breadcrumbs_ties   those that moved furthest, without the outliers that moved furthest of all (Davari and Belilovsky,
                2023); the sum, or by the elected sign
    consensus   the sum where it serves more than one of the tasks (Wang et al., 2024)

Consensus: with tau_t the vector of task t and tau their sum, the mask of t (a TALL mask) is where its own vector is larger
than lambda times what the others do there:  |tau_t| > lambda * |tau - tau_t|.  A larger lambda selects less.  What
fewer than two tasks select, one task's own parameters and those of none, is left out of the sum.

Sign election is peft's.  Its trimming isn't used: it takes torch.topk, which says nothing about ties, works tensor by tensor, and may
differ between machines; ours takes exactly the same number over the whole region, as the authors of TIES do, or of each tensor, ties
by index.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from math import isfinite
from numbers import Integral, Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..grafting.differences import difference, is_plain
from ..grafting.region import Region, Tensors, outline
from ..grafting.select import Scratch
from ..localizers.movement import distance
from ..support.errors import MaskError, ParamsError, did_you_mean, optional
from ..support.seeds import derive_seed
from .arithmetic import LEAST, is_tall
from .inputs import Piece, TaskValues, changed_pieces, in_files, pieces_of, require_finite
from .stitching import RULES

Models = Mapping[str, Tensors]
# the vector of a way at the places of a piece, float64; it is asked for all pieces of a tensor in order, and all tensors in theirs
Vector = Callable[[Piece], Tensor]
# the same of one task alone, in the scratch memory of a use or in memory of its own
Part = Callable[[Piece, str, str], Tensor]
AVERAGE, ARITHMETIC, TIES, DARE, CONSENSUS = "average", "arithmetic", "ties", "dare", "consensus"
DELLA, BREADCRUMBS = "della", "breadcrumbs"
# of each way: what stays, whether signs are elected, and whether the joined vectors are divided by the weights of those who have a part
WAYS = {
    AVERAGE: (ARITHMETIC, False, True),
    ARITHMETIC: (ARITHMETIC, False, False),
    TIES: (TIES, True, True),
    DARE: (DARE, False, False),
    CONSENSUS: (CONSENSUS, False, False),
    DELLA: (DELLA, True, True),
    BREADCRUMBS: (BREADCRUMBS, False, False),
    "dare_ties": (DARE, True, False),
    "della_linear": (DELLA, False, False),
    "breadcrumbs_ties": (BREADCRUMBS, True, False),
}
VECTORS = tuple(WAYS)
# setting -> the ways, by what stays, that read it; what scales, weighs and divides vectors is read by all of VECTORS, `seed` taken by all
READ_BY = {
    "share": (TIES, DARE, DELLA, BREADCRUMBS),
    "per": (TIES, BREADCRUMBS),
    "strictness": (CONSENSUS,),
    "gamma": (BREADCRUMBS,),
    "epsilon": (DELLA,),
    "rescale": (DARE, DELLA),
    **dict.fromkeys(("alpha", "weights", "normalize"), frozenset(stays for stays, _, _ in WAYS.values())),
}
# what stays of each vector where nobody says: the authors' figures, of DELLA and breadcrumbs in the middle of what they try
SHARES = {TIES: 0.2, DARE: 0.1, DELLA: 0.5, BREADCRUMBS: 0.14}


def reads(how: str, setting: str) -> bool:
    """True if a setting changes what this way makes."""
    return how not in RULES and WAYS[how][0] in READ_BY[setting]


@dataclass(frozen=True)
class Settings:
    """How tasks are merged (see `merge`); raises ParamsError for settings that can't be."""

    how: str
    alpha: float = 1.0
    weights: Mapping[str, float] | None = None
    share: float | Mapping[str, float] | None = None
    per: Literal["region", "tensor"] | None = None
    strictness: float = 0.4
    gamma: float = 0.01
    epsilon: float = 0.15
    rescale: bool = True
    normalize: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in (ways := (*RULES, *VECTORS)):
            raise ParamsError(f"how: unknown way {self.how!r}{did_you_mean(self.how, ways)}; known: {', '.join(ways)}")
        if not isinstance(self.weights, Mapping | None):
            raise ParamsError('weights: should be {"task": 0.5, ...}')
        if not (isinstance(self.seed, Integral) and self.seed >= 0):
            raise ParamsError(f"seed: {self.seed!r} should be a whole number, at least 0")
        if strange := [name for name in ("rescale", "normalize") if getattr(self, name) not in (True, False, None)]:
            raise ParamsError(f"{strange[0]}: {getattr(self, strange[0])!r} should be True or False")
        if self.per not in (None, "region", "tensor"):
            raise ParamsError(f"per: {self.per!r} should be 'region' or 'tensor'")
        shares = self.share if isinstance(self.share, Mapping) else {} if self.share is None else {"": self.share}
        numbers = {name: getattr(self, name) for name in ("alpha", "strictness", "gamma", "epsilon")}
        numbers |= {f"weights.{task}": weight for task, weight in (self.weights or {}).items()}
        numbers |= {f"share.{task}".removesuffix("."): share for task, share in shares.items()}
        for name, value in numbers.items():
            if not isinstance(value, Real) or not isfinite(value):
                raise ParamsError(f"{name}: {value!r} should be a finite number")
            if value < 0 and name in ("strictness", "gamma", "epsilon"):
                raise ParamsError(f"{name}: {value!r} should be 0 or more")
            if value >= 1 and name in ("gamma", "epsilon"):
                raise ParamsError(f"{name}: {value!r} should be below 1")
            if name.startswith("share") and not 0 < value <= 1:
                raise ParamsError(f"{name}: {value!r} should be above 0 and at most 1")
        said = [one.name for one in fields(self) if one.name in READ_BY and getattr(self, one.name) != one.default]
        for name in said:
            if not reads(self.how, name) and not (name == "share" and self.share == 1):  # all stays anyhow
                known = ", ".join(way for way in VECTORS if reads(way, name))
                raise ParamsError(f"{name}: changes nothing here: {self.how} takes none; {known} do")

    def for_tasks(self, tasks: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Weight and share of each task; raises ParamsError unless those that differ by task are given for all of these."""
        tasks, kept = [*tasks], SHARES.get(WAYS[self.how][0], 1.0)
        known = {"weights": self.weights, "share": self.share if isinstance(self.share, Mapping) else None}
        for name, given in known.items():
            if given is not None and given.keys() != {*tasks}:
                names = ", ".join(sorted({*tasks} ^ given.keys()))
                raise ParamsError(f"{name}: should have a number for each of the tasks and nothing else ({names})")
        weights = dict.fromkeys(tasks, 1.0) if self.weights is None else {task: self.weights[task] for task in tasks}
        share = kept if self.share is None else self.share
        shares = {task: share[task] if isinstance(share, Mapping) else share for task in tasks}
        if WAYS[self.how][0] == DELLA:
            for task, own in shares.items():
                if own < 1 and not self.epsilon < own < 1 - self.epsilon:
                    raise ParamsError(
                        f"epsilon: {self.epsilon} should leave every chance within 0 and 1: {task} keeps {own}"
                    )
        return weights, shares

    @property
    def means(self) -> bool:
        """True if the joined vectors are divided by weights."""
        return WAYS[self.how][2] if self.normalize is None else self.normalize

    def scale(self, tasks: Iterable[str]) -> float:
        """What the sum of all vectors is multiplied by; raises ParamsError for weights that cancel out where it is divided by them."""
        if self.how in RULES or not self.means or WAYS[self.how][1]:
            return self.alpha
        weights = self.for_tasks(tasks)[0]
        if not (total := sum(weights.values())):
            raise ParamsError("weights: add up to 0, and their sum divides")
        return self.alpha / total


def vector_of(settings: Settings, pretrained: Tensors, sides: Mapping[str, TaskValues]) -> Vector:
    """The vector of a way before it is scaled."""
    (stays, elects, _), (weights, shares) = WAYS[settings.how], settings.for_tasks(sides)
    if elects and (strange := next((name for name in pretrained if outline(pretrained, name).is_complex()), None)):
        raise MaskError(f"{strange}: {settings.how} elects signs, and complex numbers have none; take another way")
    if stays == CONSENSUS:
        return partial(_agreeing, settings.strictness, weights)
    if stays in (TIES, BREADCRUMBS):
        part = _trimmed(settings, pretrained, sides, shares)
    elif stays in (DARE, DELLA):
        chance = partial(_by_rank, settings.epsilon, pretrained) if stays == DELLA else _alike
        part = partial(_dropped, {}, stays, settings, shares, chance)
    else:
        part = Piece.moved
    return partial(_elected, part, weights, settings.means) if elects else partial(_added, part, weights)


def row_of(settings: Settings, pretrained: Tensors, name: str) -> int:
    """How many numbers of a tensor have to be in one piece."""
    return 16 if settings.how in RULES or WAYS[settings.how][0] != DELLA else _row(pretrained, name)


def _row(tensors: Tensors, name: str) -> int:
    """How long a row of a tensor is, laid end to end; what has no rows is one."""
    shape = outline(tensors, name).shape
    return max((shape[1:] if len(shape) > 1 else shape).numel(), 1)


def merged_vector(
    how: str, pretrained: Tensors, models: Models, share: float | None = None, strictness: float = 0.4, seed: int = 0
) -> dict[str, Tensor]:
    """The vector of VECTORS that is added to the pretrained model, float64; `models`: task -> tensors.

    share: what stays of each vector, None for SHARES; strictness: the lambda of consensus; seed: of random draws.
    """
    if how not in VECTORS:
        raise ValueError(f"unknown way {how!r}; known: {', '.join(VECTORS)}")
    sides, scratch = {task: TaskValues(model) for task, model in models.items()}, Scratch()
    settings, found = Settings(how, share=share, strictness=strictness, seed=seed), {}
    vector = vector_of(settings, pretrained, sides)
    for name, before in pretrained.items():
        found[name] = torch.empty(before.shape, dtype=torch.complex128 if before.is_complex() else torch.float64)
        for piece in pieces_of(name, pretrained, sides, scratch, row_of(settings, pretrained, name)):
            piece.put(found[name], vector(piece))
    return found


def summed(pretrained: Tensors, models: Models) -> dict[str, Tensor]:
    """The sum of the task vectors of `models` (task -> tensors), float64."""
    return merged_vector(ARITHMETIC, pretrained, models)


# --- How vectors are joined ----------------------------------------------------------------------------------------


def _added(part: Part, weights: Mapping[str, float], piece: Piece) -> Tensor:
    """The sum of all tasks' vectors, in the order of their names, as `add` sums them."""

    def weighted(task: str, use: str = "difference") -> Tensor:
        own = part(piece, task, use)
        return own if weights[task] == 1 else own.mul_(weights[task])

    first, *others = sorted(piece.given)
    return reduce(lambda total, task: total.add_(weighted(task)), others, weighted(first, "total"))


def _elected(part: Part, weights: Mapping[str, float], mean: bool, piece: Piece) -> Tensor:
    """The sum of those entries that have the sign with more movement, or their mean by weight."""
    utils, tasks = optional("peft.utils.merge_utils"), sorted(piece.given)
    stack = torch.stack([part(piece, task, f"of {place}") for place, task in enumerate(tasks)])
    by = torch.tensor([weights[task] for task in tasks], dtype=stack.dtype).reshape(-1, 1)
    agree = utils.calculate_majority_sign_mask(stack.mul_(by))
    joined = (stack * agree).sum(0)
    if not mean:
        return joined
    divisor = (by * agree).sum(0)
    return joined / divisor.masked_fill_(divisor == 0, 1.0)


def _agreeing(strictness: float, weights: Mapping[str, float], piece: Piece) -> Tensor:
    """The sum where it serves LEAST tasks or more."""
    total = _added(Piece.moved, weights, piece)
    return total * (
        sum(_tall(strictness, weights[task], total, piece.moved(task)).int() for task in piece.given) >= LEAST
    )


def _tall(strictness: float, weight: float, total: Tensor, own: Tensor) -> Tensor:
    return is_tall(own.mul_(weight), total, strictness)


# --- What stays of each vector -------------------------------------------------------------------------------------

# the place of each number, and of a task its share and vector at the places of a piece -> how likely it is that each number stays
Chance = Callable[[Piece, float, Tensor], Tensor]


def _dropped(
    draws: dict[str, torch.Generator], stays: str, settings: Settings, shares: Mapping[str, float], chance: Chance,
    piece: Piece, task: str, use: str,
) -> Tensor:  # fmt: skip
    """A task's vector of which entries stay by chance, scaled by 1 / chance.

    The draw follows from seed, task and tensor alone, so it is the same whatever other tasks there are.  `draws` are those begun.
    """
    if piece.start == 0:
        draws[task] = torch.Generator().manual_seed(derive_seed(stays, settings.seed, task, piece.name))
    moved = piece.moved(task, use)
    each = chance(piece, shares[task], moved)
    kept = torch.bernoulli(each, generator=draws[task])
    kept, each = (kept, each) if piece.at is None else (kept[piece.at], each[piece.at])
    moved = moved.mul_(kept)
    return moved.div_(each) if settings.rescale else moved


def _alike(piece: Piece, share: float, _moved: Tensor) -> Tensor:
    return torch.full((piece.stop - piece.start,), share, dtype=torch.float64)


def _by_rank(epsilon: float, pretrained: Tensors, piece: Piece, share: float, moved: Tensor) -> Tensor:
    """From share - epsilon for what moved least of a row to share + epsilon for what moved most, in equal steps; equals by index."""
    if share >= 1:
        return _alike(piece, 1.0, moved)
    size = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
    size[slice(None) if piece.at is None else piece.at] = moved.abs()
    rows = size.view(-1, _row(pretrained, piece.name))
    ranks = rows.argsort(dim=1, stable=True).argsort(dim=1).double()
    steps = max(rows.shape[1] - 1, 1)
    ranks = ranks if rows.shape[1] > 1 else ranks + 0.5  # alone it stays as often as its share says
    return (share + epsilon * (2 * ranks / steps - 1)).reshape(-1)


class _Furthest:
    """Which of numbers, that come piece by piece, are the k highest of all; of equals the first ones."""

    def __init__(self, limit: float, left: int) -> None:
        self.limit, self.left = limit, left

    def __call__(self, moved: Tensor) -> Tensor:
        kept, equal = moved > self.limit, moved == self.limit
        count = min(int(equal.sum()), self.left)
        self.left -= count
        return kept.logical_or_(equal & (equal.cumsum(0) <= count))


def _trimmed(
    settings: Settings, pretrained: Tensors, sides: Mapping[str, TaskValues], shares: Mapping[str, float]
) -> Part:
    """Each vector trimmed to the share of the region, or of each tensor, that moved furthest; of breadcrumbs without outliers."""
    stays = WAYS[settings.how][0]
    by_tensor = settings.per == "tensor" or (settings.per is None and stays == BREADCRUMBS)
    chosen: dict[str, list[_Furthest]] = {}

    def choose(tasks: Iterable[str], names: Tensors) -> dict[str, list[_Furthest]]:
        region = Region({name: tuple(outline(names, name).shape) for name in names})
        counts = [(task, count) for task in tasks for count in _counts(settings, region, shares[task], by_tensor)]
        found = dict[str, list[_Furthest]]()
        for (task, _), least in zip(counts, _least_kept(names, sides, counts), strict=True):
            found.setdefault(task, []).append(_Furthest(*least))
        return found

    def trimmed(piece: Piece, task: str, _use: str) -> Tensor:
        if by_tensor and piece.start == 0:
            chosen.update(choose([task], _only(pretrained, piece.name)))
        after = piece.after(task)
        moved = distance(piece.before, after)
        if not is_plain(moved):  # it would be passed over
            require_finite(settings.how, piece, after)
        kept, *left_out = (one(moved) for one in chosen[task])
        kept = kept & ~left_out[0] if left_out else kept
        return torch.where(kept, difference(piece.before, after, wide=True), 0.0)

    if not by_tensor:
        chosen |= choose(sides, pretrained)
    return trimmed


def _counts(settings: Settings, region: Region, share: float, by_tensor: bool) -> list[int]:
    """How many of a region stay, with the outliers among them, and how many are outliers, if there are any."""
    k = region.budget(share)
    if WAYS[settings.how][0] != BREADCRUMBS:
        return [max(k, 1) if by_tensor else k]
    outliers = min(region.budget(settings.gamma), region.size - k)
    return [k + outliers, outliers] if outliers else [k]


def _only(tensors: Tensors, name: str) -> Tensors:
    """One tensor of these, as it is read."""
    return tensors.only([name]) if hasattr(tensors, "only") else {name: tensors[name]}


def _least_kept(
    pretrained: Tensors, sides: Mapping[str, TaskValues], counts: Sequence[tuple[str, int]]
) -> list[tuple[float, int]]:
    """For each (task, k), of the k parameters that moved furthest, the least movement, and how many with just that are among them."""
    kinds = {outline(pretrained, name).dtype for name in pretrained}
    none = [torch.empty(0, dtype=kind) for kind in kinds]
    kind = reduce(torch.promote_types, (distance(one, one).dtype for one in none))
    asked = {task: sides[task] for task, _ in counts}

    def moved() -> Iterator[list[Tensor]]:
        # from the end on: what was read last is in the system's cache when merging begins, and numbers are counted in any order
        found = (piece for name in reversed([*pretrained]) for piece in pieces_of(name, pretrained, asked))
        for piece in changed_pieces(found, in_files(pretrained)):
            far = {task: distance(piece.before, piece.after(task)).to(kind) for task in piece.given}
            yield [far.get(task, none[0]) for task, _ in counts]

    return kth_highest(moved, [k for _, k in counts], kind)


def kth_highest(
    parts: Callable[[], Iterable[Sequence[Tensor]]], ks: Sequence[int], kind: torch.dtype
) -> list[tuple[float, int]]:
    """Of several series of numbers from 0 on the k-th highest of each, and how many that equal it are among the k highest.

    0 and 0 of a series with fewer than k numbers above 0, infinity and 0 for k = 0.  They come in parts of a kind, one of each series,
    float32 at most twice and float64 four times, and are counted by 16 of their bits at a time: bits of such numbers are in their order.
    So what is remembered doesn't grow with them.
    """
    series = [_Counted(k) for k in ks]
    for shift in range(8 * kind.itemsize - 16, -1, -16):
        if open_ones := [place for place, one in enumerate(series) if one.result is None]:
            for part in parts():
                for place in open_ones:
                    series[place].count(part[place].numpy().view(f"i{kind.itemsize}"), shift)
            for place in open_ones:
                series[place].settle(kind, last=shift == 0)
    return [one.result or (0.0, 0) for one in series]


class _Counted:
    """A series of numbers whose k-th highest is sought; `result` once it is found."""

    def __init__(self, k: int) -> None:
        self.result = None if k else (torch.inf, 0)
        self.found, self.left = 0, k
        self.counts = np.zeros(1 << 16, dtype=np.int64)

    def count(self, bits: np.ndarray, shift: int) -> None:
        """Count those of some numbers, by 16 bits, that begin with the bits found so far; none that are 0."""
        bits = bits[bits != 0]
        digits = bits >> shift
        self.counts += np.bincount(digits[digits >> 16 == self.found] & 0xFFFF, minlength=1 << 16)

    def settle(self, kind: torch.dtype, last: bool) -> None:
        """Find the next 16 bits."""
        higher = self.counts[::-1].cumsum()
        if higher[-1] < self.left:
            self.result = 0.0, 0
            return
        place = int(np.searchsorted(higher, self.left))
        digit = len(self.counts) - 1 - place
        self.found, self.left = self.found << 16 | digit, self.left - int(higher[place] - self.counts[digit])
        self.counts[:] = 0
        if last:
            self.result = float(np.array(self.found, f"i{kind.itemsize}").view(f"f{kind.itemsize}")), self.left
