"""The most bytes that are alive at once."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakBytes(TorchDispatchMode):
    """The most bytes alive at once in storages that operations under this mode made, temporary ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._alive, self._paused = 0, {}, False

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: tuple = (), keywords: Any = None) -> Any:
        """Run the operation and count what is alive after it."""
        result = function(*arguments, **(keywords or {}))
        if not self._paused:
            leaves = tree_leaves((arguments, keywords))
            given = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor)}
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and not leaf.is_meta and leaf.untyped_storage()._cdata not in given:
                    storage = leaf.untyped_storage()
                    self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
            self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result

    def leaving_out(self, function: Callable[[], float]) -> Callable[[], float]:
        """The same function, its operations not counted."""

        def uncounted() -> float:
            self._paused = True
            try:
                return function()
            finally:
                self._paused = False

        return uncounted
