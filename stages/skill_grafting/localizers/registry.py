"""All localizers by name; every mask is found through this module.

A localizer is a class whose fields are its settings (see localizer.py), and a line of METHODS.  A *variant* is a localizer with
other settings under a name of its own; it says what it is `of`.

A class is imported only when its localizer is asked for: names are known without torch, and no result depends on localizers
that it does not use.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..support.errors import ParamsError, did_you_mean, optional, plain_problem, require_takes

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from .localizer import Localizer, LocalizerInput

# name -> file of this folder, and class
METHODS = {
    "attribution": "first_order.Attribution",
    "bias": "baselines.Bias",
    "fish": "baselines.Fish",
    "grown": "first_order.Grown",
    "learned": "learned.Learned",
    "lota": "baselines.Lota",
    "magnitude": "baselines.Magnitude",
    "movement": "movement.Movement",
    "random": "baselines.Random",
    "talos": "talos.Talos",
}
NAMES = (*METHODS,)
# of a variant: it becomes part of the names of stages, files and settings
VARIANT = re.compile(r"[a-z0-9][a-z0-9_]{0,99}")
# (input, k) -> region indices of the k best parameters, best first
Rank = Callable[["LocalizerInput", int], "Tensor"]
REGISTERED: "dict[str, type[Localizer]]" = {}
# of `methods`
NEEDS = {True: "loss", False: "weights alone", None: "weights, and a loss if it asks for one"}


def register(name: str, rank: Rank) -> None:
    """Give a function a name that `method=` takes; raises ParamsError if the name is taken or is none.

    rank: a function of the input that every method gets and k, which returns the region indices of k parameters, the best first.
    """
    if not isinstance(name, str) or not VARIANT.fullmatch(name) or name in METHODS:
        raise ParamsError(f"{name!r}: should be a name of a-z, 0-9 and _, and none of {', '.join(METHODS)}")
    REGISTERED[name] = type(as_localizer(rank, {}, name))


def methods() -> "DataFrame":
    """A table of all methods: their names, what they need beside two models, their settings with defaults, and what they select."""
    pd = optional("pandas")

    rows = [
        {
            "method": kind.name,
            "needs": "loss, batches of single examples" if kind.of_examples else NEEDS[kind.needs_model],
            "settings": ", ".join(f"{name}={field.default!r}" for name, field in kind.model_fields.items()),
            "when": kind.__doc__.partition("\n")[0],
        }
        for kind in map(kind_of, [*METHODS, *REGISTERED])
    ]
    return pd.DataFrame(rows).set_index("method")


def as_localizer(method: "str | Localizer | Rank", settings: Mapping[str, Any], name: str = "") -> "Localizer":
    """The localizer of a name with these settings, a localizer itself, or one of a function (input, k) -> region indices."""
    from .localizer import Localizer  # imports torch

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

        def rank(self, given: "LocalizerInput", k: int) -> "Tensor":
            return _as_indices(method(given, k), self.name)

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


def localizer_of(name: str, changes: Mapping[str, Any] | None = None, place: str = "") -> "Localizer":
    """The localizer of a name, or the variant, with its default settings but for these changes.

    Raises ParamsError, of all that is wrong at `place`.
    """
    changes = changes or {}
    kind = kind_of(name, changes, place)
    try:
        return kind.model_validate({key: value for key, value in changes.items() if key != "of" or name in METHODS})
    except ValidationError as error:
        problems = (plain_problem(problem, f"{place}{name}", kind) for problem in error.errors())
        raise ParamsError("; ".join(problems)) from None


def kind_of(name: str, changes: Mapping[str, Any] | None = None, place: str = "") -> "type[Localizer]":
    """The class of a localizer, or of what a variant is `of`; raises ParamsError for an unknown name."""
    if name in REGISTERED:
        return REGISTERED[name]
    file, _, kind = METHODS[original(name, changes or {}, place)].partition(".")
    return getattr(import_module(f".{file}", __package__), kind)


def original(name: str, changes: Mapping[str, Any], place: str = "") -> str:
    """The name of a localizer itself, or of what a variant is `of`; raises ParamsError for an unknown one."""
    if name in METHODS:
        return name
    if "of" not in changes:
        known = f"known: {', '.join(METHODS)}" + ("; a variant of one says `of`" if place else "")
        raise ParamsError(f"{place}{name}: unknown localizer{did_you_mean(name, METHODS)}; {known}")
    if (of := changes["of"]) not in METHODS:
        raise ParamsError(
            f"{place}{name}.of: unknown localizer {of!r}{did_you_mean(of, METHODS)}; known: {', '.join(METHODS)}"
        )
    if not VARIANT.fullmatch(name):
        raise ParamsError(f"{place}{name}: should be a name of a-z, 0-9 and _ that starts with a letter or a digit")
    return of
