"""All localizers by name; every mask is found through this module.

A localizer is a file beside this one that bears its name and holds `LOCALIZER`, a class whose fields are its settings.  It
*ranks* the parameters of the region, best first; the mask of k parameters is the first k of its ranking, so masks are nested.
One that looks for the best set of a given size *refines*: its masks start from the ranking, if it has one, and need not be
nested.  A *variant* is a localizer with other settings under a name of its own; it says what it is `of`.

A file is imported only when its localizer is asked for: names are known without torch, and no result depends on localizers
that it does not use.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from ..support.errors import MaskError, ParamsError, did_you_mean, plain_problem, require_takes
from ..support.fields import Section
from . import NAMES

if TYPE_CHECKING:
    from torch import Tensor

    from ..grafting.mask import GraftMask
    from ..grafting.region import Region
    from .evidence import LocalizerInput

# of a variant: it becomes part of the names of stages, files and settings
VARIANT = re.compile(r"[a-z0-9][a-z0-9_]{0,99}")


@dataclass(frozen=True)
class Budget:
    """Size of a mask: k parameters, the `share` of the region that was asked for, rounded down."""

    k: int
    share: float | None = None

    @classmethod
    def of(cls, region: "Region", sparsity: "float | Budget", setting: str) -> "Budget":
        """That share of a region, or the budget that it is already.

        Raises an error that names `setting` if it is no share of parameters, or less than one of them.
        """
        if isinstance(sparsity, cls):
            return sparsity
        if not isinstance(sparsity, Real) or not 0 < sparsity <= 1:
            raise ParamsError(f"{setting}: {sparsity!r} is no share of parameters, above 0 and at most 1")
        k, size = region.budget(sparsity), region.size
        if k == 0:
            digits = 2 + math.floor(math.log10(size))
            least = f"less than one; the smallest is {math.ceil(10**digits / size) / 10**digits:.2g}"
            raise MaskError(f"{setting}: {sparsity} of {size:,} graftable parameters is {least}")
        return cls(k, sparsity)


class Localizer(Section):
    """One way to find the parameters that carry a skill, with its settings; it has a rank, or a refine, or both.

    `name` is that of its file, or the one it was registered by; `needs_model`: a model and data, and not just two sets of weights;
    None where they are taken if they are given.  `refuses_infinite`: it finds out itself if a parameter moved infinitely far.
    """

    name: ClassVar[str]
    needs_model: ClassVar[bool | None] = False
    refuses_infinite: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__module__.rpartition(".")[2]

    def rank(self, evidence: "LocalizerInput", k: int) -> "Tensor | None":
        """Region indices (int64), best first, exactly min(k, the number it has an opinion about) of them; None if it has no ranking."""

    def refine(self, evidence: "LocalizerInput", order: "Tensor | None", budget: Budget) -> "GraftMask":
        """The mask of that size, from a ranking that is at least as long: its first k."""
        from ..grafting.mask import GraftMask  # imports torch

        return GraftMask.from_region_indices(evidence.region, order[: budget.k])

    def find(self, evidence: "Callable[[], LocalizerInput]", budgets: Sequence[Budget]) -> "list[GraftMask]":
        """The mask of each budget, as if it were the only one, from one ranking; `evidence()` gives equal input each time.

        Raises TrainingError if a loss diverges.
        """
        order = self.rank(evidence(), max(budget.k for budget in budgets)) if budgets else None
        return [self.refine(evidence(), order, budget) for budget in budgets]


# (input, k) -> region indices of the k best parameters, best first
Rank = Callable[["LocalizerInput", int], "Tensor"]
REGISTERED: dict[str, type[Localizer]] = {}


def as_localizer(method: "str | Localizer | Rank", settings: Mapping[str, Any], name: str = "") -> Localizer:
    """The localizer of a name with these settings, a localizer itself, or one of a function (input, k) -> region indices."""
    if isinstance(method, str):
        return localizer_of(method, settings)
    if settings:
        raise ParamsError(f"{min(settings)}: goes with the name of a method, and this one has its settings already")
    if isinstance(method, Localizer):
        return method
    if not callable(method):
        raise ParamsError(f"method: {method!r} should be a name or a function (input, k) -> region indices")
    require_takes(method, "method", "input", "k")

    class Function(Localizer):
        __doc__ = (method.__doc__ or "A function of the caller's.").strip()
        needs_model = None

        def rank(self, evidence: "LocalizerInput", k: int) -> "Tensor":
            return _as_indices(method(evidence, k), self.name)

    Function.name = name or getattr(method, "__name__", "function")
    return Function()


def _as_indices(found: object, name: str) -> "Tensor":
    """What a function of the caller's gives; raises ParamsError unless it is a row of different whole numbers."""
    import torch

    try:
        indices = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError):
        indices = torch.empty(0, 0)
    whole = not (indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool)
    if indices.dim() != 1 or not whole or len(indices.unique()) < len(indices):
        given = (
            f"{indices.dtype} of the shape {[*indices.shape]}"
            if isinstance(found, torch.Tensor)
            else type(found).__name__
        )
        raise ParamsError(f"method: {name} should give region indices, a row of different whole numbers, not {given}")
    return indices


def localizer_of(name: str, changes: Mapping[str, Any] | None = None, place: str = "") -> Localizer:
    """The localizer of a name, or the variant, with its default settings but for these changes.

    Raises ParamsError, of all that is wrong at `place`.
    """
    changes = changes or {}
    kind = kind_of(name, changes, place)
    try:
        return kind.model_validate({key: value for key, value in changes.items() if key != "of" or name in NAMES})
    except ValidationError as error:
        problems = (plain_problem(problem, f"{place}{name}", kind) for problem in error.errors())
        raise ParamsError("; ".join(problems)) from None


def kind_of(name: str, changes: Mapping[str, Any] | None = None, place: str = "") -> type[Localizer]:
    """The class of a localizer, or of what a variant is `of`; raises ParamsError for an unknown name."""
    if name in REGISTERED:
        return REGISTERED[name]
    return import_module(f".{original(name, changes or {}, place)}", __package__).LOCALIZER


def original(name: str, changes: Mapping[str, Any], place: str = "") -> str:
    """The name of a localizer itself, or of what a variant is `of`; raises ParamsError for an unknown one."""
    if name in NAMES:
        return name
    if "of" not in changes:
        known = f"known: {', '.join(NAMES)}" + ("; a variant of one says `of`" if place else "")
        raise ParamsError(f"{place}{name}: unknown localizer{did_you_mean(name, NAMES)}; {known}")
    if (of := changes["of"]) not in NAMES:
        raise ParamsError(
            f"{place}{name}.of: unknown localizer {of!r}{did_you_mean(of, NAMES)}; known: {', '.join(NAMES)}"
        )
    if not VARIANT.fullmatch(name):
        raise ParamsError(f"{place}{name}: should be a name of a-z, 0-9 and _ that starts with a letter or a digit")
    return of
