"""What `graft localize` says about two checkpoints and their masks, and the figure of several sizes."""

import json
from argparse import Namespace
from collections import Counter
from math import isfinite
from pathlib import Path

from torch import Tensor

from ..errors import ModelError, ParamsError
from ..grafting.apply import take_at
from ..grafting.mask import GraftMask
from ..grafting.region import Region
from ..grafting.select import pieces
from ..localizers.movement import distance
from ..localizers.registry import NAMES, Localizer, kind_of, localizer_of
from ..models.comparing import listed
from ..models.loading import CLASSES
from ..models.pairs import Pair
from ..models.stored_pairs import StoredPair
from ..models.tokenizing import other_reading
from ..words import small_percent
from .card import Scores


def localizer_for(request: Namespace) -> Localizer:
    """The localizer with the settings of --set; raises ParamsError for options that don't go together."""
    name = request.localizer
    if request.test and request.data is None:
        raise ParamsError("--test: is for the rows of --data")
    if request.data is None and kind_of(name).needs_model:
        others = ", ".join(other for other in NAMES if not kind_of(other).needs_model)
        raise ParamsError(f"--localizer: {name} takes gradients, so it needs --data; without: {others}")
    if len({*request.sparsity}) > 1:
        import matplotlib  # noqa: F401 - found missing before the work, not after
    return localizer_of(name, {key: parsed(text) for key, text in request.set}, "--set ")


def region_for(request: Namespace, pair: Pair) -> Region:
    """The region of --region; raises ModelError in the words of the command."""
    try:
        return pair.region(request.region or None)
    except ModelError as error:
        raise ModelError(str(error).replace("parameters:", "--region:").replace("parameters=", "--region")) from None


def parsed(text: str) -> object:
    """The value of a setting as in JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def squared_movement(pair: Pair) -> dict[str, float]:
    """The squared distance that each parameter moved, in float64; of those that did and that both models have in one shape."""
    before, after, squares = pair.compared, pair.after, {}
    for name in pair.weights:
        if name in pair.moved and name in before and before[name].shape == after[name].shape:
            squares[name] = sum(squared_distance(*part) for part in pieces(before[name], after[name]))
            if not isfinite(squares[name]):
                pair.require_finite([name])
    return squares


def squared_distance(before: Tensor, after: Tensor) -> float:
    """The sum of the squared distances between values, in float64."""
    return float(distance(before.detach(), after.detach()).double().square().sum())


def share_of_movement(pair: Pair, mask: GraftMask, moved: dict[str, float]) -> float:
    """The part of the region's squared movement that the mask holds."""
    before = pair.compared
    held = [
        squared_distance(take_at(before[name], at), take_at(pair.after[name], at)) for name, at in mask.indices.items()
    ]
    return sum(held) / sum(moved.get(name, 0) for name in mask.region.shapes)


def assumptions(request: Namespace, pair: Pair, region: Region, moved: dict[str, float]) -> list[str]:
    """Lines on how the checkpoints were read and compared, and on what the patch leaves out."""
    labels = [*dict(request.verbalizer)] or pair.labels
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


def other_words(request: Namespace, pair: Pair, labels: list[str]) -> list[str]:
    """A line where a language model's tokenizer differs from its base's; ModelError where labels or rows are read with it."""
    if not isinstance(pair, StoredPair) or pair.kind not in CLASSES:
        return []
    words = {"prompt": ("mask_token",), "generative": ("eos_token",)}.get(pair.kind, ())
    differs = other_reading(pair.base.checkpoint.folder, pair.tuned.checkpoint.folder, words)
    if differs and (labels or request.data):
        raise ModelError(f"{request.finetuned}: {differs}")
    return [f"{request.finetuned}: {differs}."] if differs else []


def save_curve(
    path: Path, masks: dict[str, GraftMask], scores: Scores, shares: dict[str, float], request: Namespace
) -> None:
    """Draw the scores of the grafts of several sizes beside those of the other models, or the shares of the movement that they hold."""
    import pandas as pd

    from ..curves import plot_curve, save_figure

    sizes, region = {name: mask.sparsity for name, mask in masks.items()}, next(iter(masks.values())).region
    if scores:
        measured = {name: (100 * row["score"], 100 * row["accuracy_se"]) for name, row in scores.items()}
        what = f"n = {next(iter(scores.values()))['n']:,} test rows, bars: 95 %"
    else:
        measured = {name: (100 * share, None) for name, share in shares.items()}
        what = f"n = {region.size:,} parameters"
    rows = [("grafted" if name in sizes else name, sizes.get(name), *values) for name, values in measured.items()]
    table = pd.DataFrame(rows, columns=["model", "sparsity", "score", "se"]).dropna(axis=1, how="all")
    axes = plot_curve(table, label="accuracy (%)" if scores else "share of the squared movement (%)")
    if not scores:  # what is found is how much the fewest hold
        least = table.loc[table.sparsity.idxmin()]
        axes.set_title(
            f"{small_percent(least.sparsity)} of the parameters hold {least.score:.1f} % of the squared movement"
        )
    save_figure(axes, path, f"{request.task or Path(request.finetuned).name}, by {request.localizer} ({what})")
