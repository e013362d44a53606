"""Skill grafting: find the few parameters that carry what a model learned in fine-tuning.

import skill_grafting as sg

mask = sg.localize(base, tuned, sparsity=1e-4)
model = sg.graft(base, tuned, mask)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what an editor sees
    from .api import calibration_error, fisher, load_mask, localize
    from .grafting.mask import GraftMask
    from .grafting.modules import graft
    from .merging import merge
    from .patches.live import grafted, load_graft, open_patch
    from .training.masked import masked_optimizer

__all__ = [
    "GraftMask",
    "calibration_error",
    "fisher",
    "graft",
    "grafted",
    "load_graft",
    "load_mask",
    "localize",
    "masked_optimizer",
    "merge",
    "open_patch",
]
# imported on first access: putting a patch on a model needs only torch and transformers
_PLACES = {
    **dict.fromkeys(("calibration_error", "fisher", "load_mask", "localize"), "api"),
    "graft": "grafting.modules",
    "GraftMask": "grafting.mask",
    "merge": "merging",
    "masked_optimizer": "training.masked",
    **dict.fromkeys(("grafted", "load_graft", "open_patch"), "patches.live"),
}


def __getattr__(name: str) -> object:
    """The functions of the package."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    """The names of the API."""
    return __all__
