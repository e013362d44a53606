"""Progress bars: drawn on a terminal, silent in a log."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from torch.nn import Module


def progress(title: str, total: int | None, unit: str, shown: bool = True) -> tqdm:
    """A bar to be used in a `with`, without an end if `total` is None; its `update(n=1)` moves it."""
    # of itself it is silent where stderr is no terminal, as in a notebook
    disable = not shown or (False if "ipykernel" in sys.modules else None)
    return tqdm(desc=title, total=total, unit=unit, disable=disable, leave=False, mininterval=0.5)


@contextmanager
def watched(title: str, total: int, unit: str, module: "Module | None" = None) -> Iterator[Callable]:
    """A bar, if it has a title, that is moved by the function that this gives, and by each forward pass of a module if there is one."""
    with progress(title, total or None, unit, bool(title)) as bar, ExitStack() as stack:

        def noted(*_: object) -> None:
            bar.update()

        if module:
            with suppress(RuntimeError):  # a ScriptModule takes none
                stack.callback(module.register_forward_pre_hook(noted).remove)
        yield bar.update
