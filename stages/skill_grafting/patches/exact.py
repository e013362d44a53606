"""Exact differences of two models, bit for bit: the form in which a step of training travels."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..grafting.differences import places_of_change
from ..grafting.fingerprint import fingerprint
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Region, outline
from ..grafting.select import Converted
from ..modules.pairs import BaseOrPair, Pair
from ..support.errors import ModelError
from .patch import Patch


def diff(base: BaseOrPair, tuned: nn.Module | None = None, *, title: str = "", **about: Any) -> Patch:
    """The patch of all that differs between two models by its bits: put onto the base it gives the tuned model, bit for bit.

    Of two modules, or of the pair of two checkpoints (`read_pair`).  Nothing is ranked or left out: signs of zeros, NaNs with their
    payload, whole numbers and buffers count; heads, and buffers that differ, travel whole.  `patch.use.makes` is the fingerprint of the
    result's parameters, heads aside, by which `patch.then(later)` and
    `patch.put_on(model)` know each other's models.  about: labels, notes and the base's name,
    source and revision, as in `Patch.of`.  Raises ModelError unless both have the same types.
    """
    pair = Pair.of(base, tuned)
    if pair.own is not None:  # the tuned model in types of its own, of which none may be another
        pair = replace(pair, after=Converted(pair.own, lambda name, values: values.to(pair.before[name].device)))
    names = [name for name in pair.weights if name not in pair.heads]
    places, values = {}, {}
    for name in names:
        before, after = _alike(pair, name)
        if len(at := places_of_change(before, after)):
            places[name], values[name] = at, after.reshape(-1)[at.to(after.device)].cpu().clone()
    region = Region({name: tuple(outline(pair.before, name).shape) for name in names})
    known = {*names}
    whole = [name for name in pair.after if name not in known and (name in pair.heads or _differs(pair, name))]
    head = {name: pair.after[name].detach().cpu().clone() for name in whole}
    stored = StoredMask(GraftMask(region, places, {"method": "diff"}), values, head, {})
    return Patch.holding(pair, stored, makes=fingerprint(region, pair.after), title=title, **about)


def _alike(pair: Pair, name: str) -> tuple[Tensor, Tensor]:
    before, after = pair.before[name], pair.after[name]
    if before.shape != after.shape or before.dtype != after.dtype:
        sides = " and ".join(f"{[*side.shape]} of {side.dtype}" for side in (before, after))
        raise ModelError(f"{name}: an exact difference is of one shape and type, not of {sides}")
    return before, after


def _differs(pair: Pair, name: str) -> bool:
    """True for a buffer that differs by its bits, or that the tuned model alone has."""
    if name not in pair.before or pair.before[name].shape != pair.after[name].shape:
        return True
    before, after = pair.before[name], pair.after[name]
    return before.dtype != after.dtype or bool(len(places_of_change(before, after)))
