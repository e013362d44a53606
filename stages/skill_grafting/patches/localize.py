"""localize: the patch between any two checkpoints, found tensor by tensor, so at any size."""

import time
from argparse import Namespace
from typing import Any

from tabulate import tabulate

from .. import api
from ..metrics.variants import GRAFTED
from ..models.evidence import draws
from ..models.loading import CLASSES
from ..models.stored_pairs import read_pair
from ..words import percent
from . import about_pairs
from .card import AS_PATCH, require_free, score_table, write_folder
from .patch import Patch
from .rows import Rows, longest_request, requested_task


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one, or one of each size; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or why the options (__main__.py) can't be used.
    """
    request, started, target = Namespace(**options), time.monotonic(), require_free(options["to"])
    localizer, sizes = about_pairs.localizer_for(request), sorted({*request.sparsity})
    pair = read_pair(request.base, request.finetuned, request.mode, (request.revision, request.finetuned_revision))
    task, text = requested_task(request, pair), pair.kind in CLASSES
    differs = about_pairs.other_words(request, pair, task.labels)
    length = longest_request(request, pair) if text else None
    rows = Rows.read(request, pair, task, length) if request.data else None
    region = about_pairs.region_for(request, pair)
    masks = api.localize(
        pair, sparsity=sizes, method=localizer, parameters=region.shapes.__contains__,
        loss=rows and rows.objective([*region.shapes], request.seed),
        seed=draws(request.localizer, task.name, request.seed),
    )  # fmt: skip
    grafts = {GRAFTED if len(sizes) == 1 else f"{GRAFTED}_{size:g}": masks[size] for size in sizes}
    scores, moved, lines, shares = rows.scores(grafts) if rows else {}, about_pairs.squared_movement(pair), [], {}
    about = {"title": task.title, "labels": task.labels, "prompt": task.prompt_for(pair.kind) if text else None}
    for (variant, mask), size in zip(grafts.items(), sizes, strict=True):
        patch = Patch.of(pair, mask=mask, max_length=length, **about)
        own = {name: row for name, row in scores.items() if name == variant or name not in grafts}
        patch.scores = {GRAFTED if name == variant else name: row for name, row in own.items()}
        shares[variant] = about_pairs.share_of_movement(pair, mask, moved)
        lines.append(write_folder(target if len(sizes) == 1 else target / f"{size:g}", patch, AS_PATCH))
        lines.append(f"{percent(shares[variant])} % of the region's squared movement.")
    if len(sizes) > 1:
        about_pairs.save_curve(target / "curve.png", grafts, scores, shares, request)
    scored = tabulate(score_table(scores, "in %"), tablefmt="plain", disable_numparse=True)
    lines += [*about_pairs.assumptions(request, pair, region, moved), *differs, rows.line if rows else "", scored]
    return "\n".join([*filter(None, lines), f"{time.monotonic() - started:.1f} seconds."])
