"""Skill grafting: find the few parameters that carry what a model learned in fine-tuning.

import skill_grafting as sg

mask = sg.localize(base, tuned, sparsity=1e-4)
model = sg.graft(base, tuned, mask)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what an editor sees
    from .api import fisher, localize
    from .curves import curve, plot_curve
    from .errors import GraftError
    from .grafting.mask import GraftMask
    from .grafting.mask_reading import load_mask
    from .grafting.modules import graft, grafted
    from .localizers.known import methods, register
    from .merging import merge
    from .metrics.calibration import calibration_error
    from .models.stored_pairs import read_pair
    from .patches.patch import Patch
    from .training.masked import masked_optimizer

    __version__: str

__all__ = [
    "GraftError",
    "GraftMask",
    "Patch",
    "__version__",
    "calibration_error",
    "curve",
    "fisher",
    "graft",
    "grafted",
    "load_mask",
    "localize",
    "masked_optimizer",
    "merge",
    "methods",
    "plot_curve",
    "read_pair",
    "register",
]
# imported on first access: putting a patch on a model needs only torch and transformers
_PLACES = {
    **dict.fromkeys(("fisher", "localize"), "api"),
    **dict.fromkeys(("curve", "plot_curve"), "curves"),
    **dict.fromkeys(("methods", "register"), "localizers.known"),
    "calibration_error": "metrics.calibration",
    "read_pair": "models.stored_pairs",
    **dict.fromkeys(("graft", "grafted"), "grafting.modules"),
    "GraftError": "errors",
    "GraftMask": "grafting.mask",
    "load_mask": "grafting.mask_reading",
    "Patch": "patches.patch",
    "merge": "merging",
    "masked_optimizer": "training.masked",
}


def __getattr__(name: str) -> object:
    """The functions of the package."""
    if name == "__version__":
        from importlib.metadata import version

        return version("skill-grafting")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    """The names of the API."""
    return __all__
