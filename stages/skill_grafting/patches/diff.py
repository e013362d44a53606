"""diff: the exact difference of two checkpoints, bit for bit, as a patch."""

import time
from pathlib import Path

from ..checkpoints.pairs import open_pair
from ..support.writing import require_free
from .card import AS_PATCH, write_folder
from .exact import diff as exact_diff


def diff(
    base: str,
    finetuned: str,
    to: Path,
    revision: str | None,
    finetuned_revision: str | None,
    title: str | None,
    compact: bool,
) -> str:
    """Write the patch of all that differs to a new folder; gives lines about it.  Raises GraftError as `localize` does."""
    started, target = time.monotonic(), require_free(to)
    pair = open_pair(base, finetuned, None, (revision, finetuned_revision))
    patch = exact_diff(pair, title=title or Path(finetuned).resolve().name)
    lines = [
        write_folder(target, patch, AS_PATCH, compact=compact),
        f"It makes the state {patch.use.makes[:12]} of {patch.use.fingerprint[:12]}.",
        *pair.along,
    ]
    return "\n".join([*lines, f"{time.monotonic() - started:.1f} seconds."])
