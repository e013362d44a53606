"""localize: the patch between any two checkpoints, found tensor by tensor, so at any size."""

import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.pairs import StoredPair, open_pair
from ..finding import masks_between
from ..grafting.fingerprint import fingerprint
from ..grafting.region import Region
from ..localizers.localizer import NO_OBJECTIVE, Budget
from ..localizers.movement import squared_distance
from ..localizers.registry import localizer_of
from ..modules.pairs import Pair
from ..support.errors import ModelError
from ..support.formatting import percent, small_percent
from ..support.writing import require_free
from .card import AS_PATCH, write_folder
from .making import patch_between, whole_region
from .patch_file import PatchContent


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one, or one of each size; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or why the options (__main__.py) can't be used.
    """
    request, started, target = Namespace(**options), time.monotonic(), require_free(options["to"])
    title, sizes = request.title or Path(request.finetuned).resolve().name, sorted({*request.sparsity})
    pair = open_pair(request.base, request.finetuned, request.mode, (request.revision, request.finetuned_revision))
    region = _region(request, pair)
    localizer, budgets = localizer_of(request.localizer), [Budget.of(region, size, "sparsity") for size in sizes]
    with ThreadPoolExecutor(1) as beside, _one_thread_less():  # the base is read for its fingerprint by the way
        beside.submit(fingerprint, whole_region(pair.before, pair.weights, region.shapes, {*pair.whole}), pair.before)
        masks = masks_between(
            localizer, NO_OBJECTIVE, pair, region, budgets, request.seed, localizer.name, read_once=True
        )
    squares = pair.squares
    pair.require_finite(name for name in pair.weights if name in pair.moved and not isfinite(squares.get(name, nan)))
    moved, lines = sum(squares.get(name, 0.0) for name in region.shapes), []
    for size, mask in zip(sizes, masks, strict=True):
        folder = target if len(sizes) == 1 else target / repr(size).removesuffix(".0")
        patch = patch_between(pair, mask, title=title)
        lines.append(write_folder(folder, patch, AS_PATCH, compact=request.compact))
        lines.append(f"{percent(_movement_in(pair, patch) / moved)} % of the region's squared movement.")
    lines += _assumptions(request, pair, mask.record.get("left_out"))
    return "\n".join([*lines, f"{time.monotonic() - started:.1f} seconds."])


@contextmanager
def _one_thread_less() -> Iterator[None]:
    """Leave a processor to other work: with more threads than processors each waits for the others all the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _region(request: Namespace, pair: Pair) -> Region:
    """The region of --region; raises ModelError in the words of the command."""
    try:
        region = pair.region("all" if "all" in request.region else request.region or None)
        pair.require_one_shape(region.shapes)
        return region
    except ModelError as error:
        raise ModelError(str(error).replace("parameters:", "--region:").replace("parameters=", "--region")) from None


def _movement_in(pair: Pair, patch: PatchContent) -> float:
    """The squared distance that the parameters of a patch moved."""
    before = pair.base_at(patch.mask)
    return float(sum(squared_distance(before[name], values) for name, values in patch.values.items()))


def _assumptions(request: Namespace, pair: Pair, left_out: dict[str, Any] | None) -> list[str]:
    """Lines on how the checkpoints were read and compared, and on what the patch leaves out."""
    labels = f"labels: {', '.join(pair.labels)}" if pair.labels else "no labels"
    lines = [f"Read as {pair.kind}; {labels}."]
    if left_out:
        what = f"{small_percent(left_out['share'])} of all squared movement, most of it in {left_out['most']}"
        lines.append(f"Moved too, and left as it was pretrained: {what}; --region all takes it in.")
    if without := [group for group in request.region if group not in (*pair.groups.values(), "all")]:
        lines.append(f"This model has no parameters of {', '.join(without)}.")
    return [*lines, *(pair.rounding if isinstance(pair, StoredPair) else ()), *pair.along]
