"""Progress bars: drawn on a terminal, silent in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from torch.nn import Module


def progress(title: str, total: int | None, unit: str) -> tqdm:
    """A bar to be used in a `with`, without an end if `total` is None; its `update(n=1)` moves it."""
    return tqdm(desc=title, total=total, unit=unit, disable=None, leave=False, mininterval=0.5)


@contextmanager
def each_pass(module: "Module", note: Callable[[], object]) -> Iterator[None]:
    """Call `note()` before every forward pass of a module: for a bar of work that is made of passes."""

    def noted(*_: object) -> None:
        note()

    handle = module.register_forward_pre_hook(noted)
    try:
        yield
    finally:
        handle.remove()
