"""localize: the patch between any two checkpoints, found tensor by tensor, so at any size."""

import time
from argparse import Namespace
from typing import Any

from tabulate import tabulate

from .. import api
from ..errors import ModelError
from ..io import require_free
from ..metrics.variants import GRAFTED
from ..models.anatomy import CLASSES
from ..models.evidence import draws
from ..models.pairs import Pair
from ..models.stored_pairs import StoredPair, read_pair
from ..models.tokenizing import other_reading
from ..words import percent
from .about_pairs import assumptions, localizer_for, region_for, save_curve, share_of_movement
from .card import AS_PATCH, score_table, write_folder
from .patch import Patch
from .rows import Rows, longest_request, requested_task


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one, or one of each size; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or why the options (__main__.py) can't be used.
    """
    request, started, target = Namespace(**options), time.monotonic(), require_free(options["to"])
    localizer, sizes = localizer_for(request), sorted({*request.sparsity})
    pair = read_pair(request.base, request.finetuned, request.mode, (request.revision, request.finetuned_revision))
    task, text = requested_task(request, pair), pair.kind in CLASSES
    differs = _other_reading(request, pair, task.labels)
    length = longest_request(request, pair) if text else None
    rows = Rows.read(request, pair, task, length) if request.data else None
    region = region_for(request, pair)
    masks = api.localize(
        pair, sparsity=sizes, method=localizer, parameters=region.shapes.__contains__,
        loss=rows and rows.objective([*region.shapes], request.seed),
        seed=draws(request.localizer, task.name, request.seed),
    )  # fmt: skip
    grafts = {GRAFTED if len(sizes) == 1 else f"{GRAFTED}_{size:g}": masks[size] for size in sizes}
    scores, moved, lines, shares = rows.scores(grafts) if rows else {}, pair.squared_movement(), [], {}
    about = {"title": task.title, "labels": task.labels, "prompt": task.prompt_for(pair.kind) if text else None}
    for (variant, mask), size in zip(grafts.items(), sizes, strict=True):
        patch = Patch.of(pair, mask=mask, max_length=length, **about)
        patch.scores = {
            GRAFTED if name == variant else name: row
            for name, row in scores.items()
            if name == variant or name not in grafts
        }
        shares[variant] = share_of_movement(pair, mask, moved)
        lines.append(write_folder(target if len(sizes) == 1 else target / f"{size:g}", patch, AS_PATCH))
        lines.append(f"{percent(shares[variant])} % of the region's squared movement.")
    if len(sizes) > 1:
        save_curve(target / "curve.png", grafts, scores, shares, request)
    scored = tabulate(score_table(scores, "in %"), tablefmt="plain", disable_numparse=True)
    notes = [
        *assumptions(request, pair, region, moved),
        *differs,
        *([rows.line] if rows else []),
        *filter(None, [scored]),
    ]
    return "\n".join([*lines, *notes, f"{time.monotonic() - started:.1f} seconds."])


def _other_reading(request: Namespace, pair: Pair, labels: list[str]) -> list[str]:
    """A line where a language model's tokenizer differs from its base's; ModelError where labels or rows are read with it."""
    if not isinstance(pair, StoredPair) or pair.kind not in CLASSES:
        return []
    words = {"prompt": ("mask_token",), "generative": ("eos_token",)}.get(pair.kind, ())
    differs = other_reading(pair.base.checkpoint.folder, pair.tuned.checkpoint.folder, words)
    if differs and (labels or request.data):
        raise ModelError(f"{request.finetuned}: {differs}")
    return [f"{request.finetuned}: {differs}."] if differs else []
