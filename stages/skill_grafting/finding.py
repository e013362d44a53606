"""The masks between the two models of a pair, whether these are modules or lie in files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .grafting.mask import GraftMask
from .grafting.region import Region
from .grafting.select import NoNumberError
from .localizers.localizer import Budget, Localizer, Objective, find_masks
from .modules.pairs import Pair


def masks_between(
    localizer: Localizer,
    objective: Objective,
    pair: Pair,
    region: Region,
    budgets: Sequence[Budget],
    seed: int | np.random.Generator = 0,
    title: str = "",
    read_once: bool = False,
) -> list[GraftMask]:
    """`find_masks` between the models of a pair; the record of each mask says what is `left_out`.

    read_once: files are read in one pass: a pair's `squares` are made on the way, by which the caller refuses what isn't finite, and the
    values at the masks are kept, if the localizer has them.
    Raises ModelError, besides, for values in the region that are infinite or no numbers where something moved.
    """
    if not (localizer.refuses_infinite or read_once):
        pair.require_finite(region.shapes)
    ends = pair.ends() if read_once else (pair.compared, pair.after)
    try:
        keep = partial(pair.keep, region) if read_once else None
        masks = find_masks(localizer, objective, region, ends, budgets, seed, title, keep)
    except NoNumberError:
        pair.require_finite(region.shapes)
        raise
    about = _left_out(pair, region)
    return [replace(mask, record={**about, **mask.record}) for mask in masks]


def _left_out(pair: Pair, region: Region) -> dict[str, Any]:
    """What moved and no mask of the region can take: its share of all squared movement, how many tensors, and which moved most."""
    inside = {*region.shapes} | pair.heads
    outside = [name for name in pair.weights if name in pair.moved and name not in inside and name in pair.before]
    if not outside:
        return {}
    squares = {name: square for name, square in pair.squares.items() if math.isfinite(square)}
    share = sum(squares.get(name, 0) for name in outside) / (sum(squares.values()) or 1)
    most = max(outside, key=lambda name: squares.get(name, 0))
    # a sum's last digits depend on how many threads made it
    return {"left_out": {"share": float(f"{share:.6g}"), "tensors": len(outside), "most": most}}
