"""Counts of parameters that several grafts select, and their expectations for random masks of the same sizes."""

from collections.abc import Sequence
from math import prod

import torch

from skill_grafting.grafting.mask_file import StoredMask
from skill_grafting.grafting.region import Tensors


def count_collisions(grafts: Sequence[StoredMask], pretrained: Tensors) -> dict[str, int | float]:
    """Numbers of parameters: selected by any graft, by two or more, and by two or more that move it apart.

    union, colliding, opposed (among the colliding ones: one graft moves it up and another down);
    chance_union and chance_colliding: their expectations for random masks of the same sizes.  All
    grafts are of one region, as `stitch` asks for.
    """
    region = grafts[0].mask.region
    union = colliding = opposed = 0
    for name in region.shapes:
        chosen = torch.zeros(pretrained[name].numel(), dtype=torch.int16)
        up, down = torch.zeros_like(chosen), torch.zeros_like(chosen)
        for graft in (graft for graft in grafts if name in graft.mask.indices):
            places = graft.mask.indices[name]
            moved = graft.values[name] - pretrained[name].reshape(-1)[places]
            chosen[places] += 1
            up[places] += (moved > 0).short()
            down[places] += (moved < 0).short()
        union += int((chosen > 0).sum())
        colliding += int((chosen > 1).sum())
        opposed += int(((up > 0) & (down > 0)).sum())
    by_chance = chance_collisions([graft.mask.selected for graft in grafts], region.size)
    return {"union": union, "colliding": colliding, "opposed": opposed, **by_chance}


def chance_collisions(selected: Sequence[int], size: int) -> dict[str, float]:
    """chance_union and chance_colliding for independent random masks of these sizes among `size` parameters, exactly.

    A parameter is in mask i with probability selected[i] / size, whatever the other masks are.
    Raises ValueError if a mask doesn't fit.
    """
    if any(not 0 <= number <= size for number in selected):
        raise ValueError(f"masks of {[*selected]} do not fit among {size} parameters")
    shares = [number / size for number in selected]
    none = prod(1 - share for share in shares)
    one = sum(
        share * prod(1 - other for place, other in enumerate(shares) if place != number)
        for number, share in enumerate(shares)
    )
    return {"chance_union": size * (1 - none), "chance_colliding": size * (1 - none - one)}
