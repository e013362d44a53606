"""Progress bars: drawn on a terminal, silent in a log."""

from tqdm import tqdm


def progress(title: str, total: int | None, unit: str) -> tqdm:
    """A bar to be used in a `with`, without an end if `total` is None; its `update(n=1)` moves it."""
    return tqdm(desc=title, total=total, unit=unit, disable=None, leave=False, mininterval=0.5)
