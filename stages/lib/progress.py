"""Progress bars: drawn on a terminal, silent in a log."""

from typing import Any

from tqdm import tqdm


def progress(title: str, total: int, unit: str) -> Any:
    """A bar to be used in a `with`; its `update(n=1)` moves it."""
    return tqdm(desc=title, total=total, unit=unit, disable=None, leave=False, mininterval=0.5)
