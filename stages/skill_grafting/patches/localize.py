"""localize: the patch between any two checkpoints, found tensor by tensor, so at any size."""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from .. import api
from ..checkpoints.pairs import read_pair
from ..support.formatting import percent
from . import about_pairs
from .card import AS_PATCH, require_free, write_folder
from .patch import Patch


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one, or one of each size; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or why the options (__main__.py) can't be used.
    """
    request, started, target = Namespace(**options), time.monotonic(), require_free(options["to"])
    sizes = sorted({*request.sparsity})
    pair = read_pair(request.base, request.finetuned, request.mode, (request.revision, request.finetuned_revision))
    region = about_pairs.region_for(request, pair)
    known = region.shapes.__contains__
    masks = api.localize(pair, sparsity=sizes, method=request.localizer, parameters=known, seed=request.seed)
    moved, lines, title = (
        about_pairs.moved_by(pair),
        [],
        request.title or Path(request.finetuned).resolve().name,
    )
    for size, mask in masks.items():
        folder = target if len(sizes) == 1 else target / f"{size:g}"
        lines.append(write_folder(folder, Patch.of(pair, mask=mask, title=title), AS_PATCH))
        share = about_pairs.share_of_movement(pair, mask, moved)
        lines.append(f"{percent(share)} % of the region's squared movement.")
    lines += about_pairs.assumptions(request, pair, region, moved)
    return "\n".join([*lines, f"{time.monotonic() - started:.1f} seconds."])
