"""All localizers by name; every mask is found through this module.

A localizer is a file beside this one that bears its name and holds `LOCALIZER`.  It *ranks* the parameters of the
region, best first; the mask of k parameters is the first k of its ranking, so masks are nested.  One that looks for the
best set of a given size besides *refines*: its masks start from the ranking and need not be nested.  A file is
imported only when its localizer is asked for, so that no result depends on localizers that it does not use.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from typing import Any, Literal

from pydantic import ValidationError
from torch import Tensor

from ..errors import MaskError, ParamsError, TrainingError, did_you_mean, plain_problem
from ..grafting.mask import GraftMask
from ..grafting.region import Region
from ..settings import Section
from .evidence import LocalizerInput
from .names import NAMES


@dataclass(frozen=True)
class Budget:
    """Size of a mask: exactly `k` parameters (top_k), or at most k, those with gamma above 0.5 (threshold).

    The rule is for localizers that learn a gamma; all others select k.  `share` is what was asked for: k is its
    share of the region, rounded down.
    """

    k: int
    rule: Literal["top_k", "threshold"] = "top_k"
    share: float | None = None

    @classmethod
    def of(cls, region: Region, sparsity: float, rule: Literal["top_k", "threshold"], setting: str) -> "Budget":
        """That share of a region; raises an error that names `setting` if it is no share, or less than one parameter."""
        if not isinstance(sparsity, Real) or not 0 < sparsity <= 1:
            raise ParamsError(f"{setting}: {sparsity!r} is no share of parameters, above 0 and at most 1")
        k, size = region.budget(sparsity), region.size
        if k == 0:
            digits = 2 + math.floor(math.log10(size))
            least = f"less than one; the smallest is {math.ceil(10**digits / size) / 10**digits:.2g}"
            raise MaskError(f"{setting}: {sparsity} of {size:,} graftable parameters is {least}")
        return cls(k, rule, sparsity)


@dataclass(frozen=True)
class FoundMask:
    """A mask, and the entries about how it was found for its file's header."""

    mask: GraftMask
    record: dict[str, Any] = field(default_factory=dict)


class LocalizerSettings(Section):
    """Settings of a localizer with their defaults; a class of its own stands in its file."""


@dataclass(frozen=True)
class Localizer:
    """One way to find the parameters that carry a skill.

    rank(evidence, settings, k) gives region indices (int64), best first, exactly min(k, the number
    it has an opinion about) of them.  refine(evidence, settings, order, budget), where there is one, gives the
    mask of that size, starting from that order.  `settings` is the class of what both are given, with its defaults.
    `rank_needs_model` says whether the rank needs the model, or only the two sets of weights, and
    `refines_rank` whether refine looks at the order, so that it has to be made first.
    """

    about: str
    rank: Callable[[LocalizerInput, Any, int], Tensor]
    refine: Callable[[LocalizerInput, Any, Tensor | None, Budget], FoundMask] | None = None
    rank_needs_model: bool = False
    refines_rank: bool = True
    settings: type[LocalizerSettings] = LocalizerSettings

    @property
    def needs_model(self) -> bool:
        """True if the localizer needs a model and data, and not just two sets of weights."""
        return self.rank_needs_model or self.refine is not None

    def find(
        self, evidence: LocalizerInput, settings: Section, budget: Budget, order: Tensor | None = None
    ) -> FoundMask:
        """The mask: the first k of the ranking, made here unless given, or what it is refined to."""
        if order is None and (self.refine is None or self.refines_rank):
            order = self.rank(evidence, settings, budget.k)
        if budget.k == 0:
            return FoundMask(GraftMask.empty(evidence.region))
        if self.refine is None:
            return FoundMask(GraftMask.from_region_indices(evidence.region, order[: budget.k]))
        return self.refine(evidence, settings, order, budget)


def localizer_of(name: str) -> Localizer:
    """The localizer of this name, one of names.NAMES."""
    return import_module(f".{name}", __package__).LOCALIZER


def settings_of(name: str, changes: Mapping[str, Any], place: str) -> Section:
    """The default settings of a localizer with these changes; raises ParamsError, of all that is wrong at `place`."""
    if name not in NAMES:
        raise ParamsError(f"{place}unknown localizer {name!r}{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}")
    kind = localizer_of(name).settings
    try:
        return kind.model_validate(changes)
    except ValidationError as error:
        problems = (plain_problem(problem, f"{place}{name}", kind) for problem in error.errors())
        raise ParamsError("; ".join(problems)) from None


def find_mask(
    name: str, evidence: LocalizerInput, settings: Section, budget: Budget, order: Tensor | None = None
) -> FoundMask:
    """The mask by this localizer, from its ranking `order` if known; TrainingError if the loss diverges."""
    try:
        return localizer_of(name).find(evidence, settings, budget, order)
    except FloatingPointError as error:
        rate = getattr(settings, "learning_rate", "none")
        raise TrainingError(f"{error}; lower localizer.{name}.learning_rate ({rate})") from error


def find_masks(
    name: str, evidence: Callable[[], LocalizerInput], settings: Section, budgets: Sequence[Budget]
) -> list[FoundMask]:
    """The mask of each budget, as if it were the only one, from one ranking; `evidence()` gives equal input each time."""
    localizer, order = localizer_of(name), None
    if budgets and (localizer.refine is None or localizer.refines_rank):
        order = localizer.rank(evidence(), settings, max(budget.k for budget in budgets))
    return [find_mask(name, evidence(), settings, budget, order) for budget in budgets]
