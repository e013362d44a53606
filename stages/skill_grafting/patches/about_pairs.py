"""What `graft localize` says about two checkpoints and their masks."""

from argparse import Namespace
from collections import Counter
from math import isfinite

from ..checkpoints.comparing import listed
from ..checkpoints.pairs import StoredPair
from ..grafting.apply import taken
from ..grafting.mask import GraftMask
from ..grafting.region import Region, outline
from ..localizers.movement import squared_distance, squared_movement
from ..modules.pairs import Pair
from ..support.errors import ModelError


def region_for(request: Namespace, pair: Pair) -> Region:
    """The region of --region; raises ModelError in the words of the command."""
    try:
        return pair.region("all" if "all" in request.region else request.region or None)
    except ModelError as error:
        raise ModelError(str(error).replace("parameters:", "--region:").replace("parameters=", "--region")) from None


def moved_by(pair: Pair) -> dict[str, float]:
    """The squared distance that each parameter moved, in float64; of those that did and that both models have in one shape."""
    before, after = pair.compared, pair.after
    there = [name for name in pair.weights if name in pair.moved and name in before]
    alike = [name for name in there if outline(before, name).shape == outline(after, name).shape]
    squares = squared_movement(before, after, alike)
    pair.require_finite([name for name, square in squares.items() if not isfinite(square)])
    return squares


def share_of_movement(pair: Pair, mask: GraftMask, moved: dict[str, float]) -> float:
    """The part of the region's squared movement that the mask holds."""
    before = pair.compared
    held = [squared_distance(taken(before, name, at), taken(pair.after, name, at)) for name, at in mask.indices.items()]
    return sum(held) / sum(moved.get(name, 0) for name in mask.region.shapes)


def assumptions(request: Namespace, pair: Pair, region: Region, moved: dict[str, float]) -> list[str]:
    """Lines on how the checkpoints were read and compared, and on what the patch leaves out."""
    labels = pair.labels
    lines = [f"Read as {pair.kind}; " + (f"labels: {', '.join(labels)}." if labels else "no labels.")]
    outside: Counter[str] = Counter()
    for name, squares in moved.items():
        if name not in region.shapes and name not in pair.heads:
            outside[pair.groups[name]] += squares
    if outside:
        shares = ", ".join(f"{name} {100 * squares / sum(moved.values()):.2g} %" for name, squares in outside.items())
        lines.append(
            f"Moved too, and left as they were pretrained: {shares} of all squared movement; --region takes them in."
        )
    if without := [group for group in request.region if group not in pair.groups.values()]:
        lines.append(f"This model has no parameters of {', '.join(without)}.")
    if isinstance(pair, StoredPair):
        lines += pair.rounding
        if pair.unread:
            reason = "Not read, as no model of its class computes with it"
            lines.append(f"{reason}: {listed(pair.unread)} of {request.finetuned}.")
    return lines
