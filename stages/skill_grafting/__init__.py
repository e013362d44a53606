"""Skill grafting: find the few parameters that carry what a model learned in fine-tuning.

import skill_grafting as sg

mask = sg.localize(base, tuned, sparsity=1e-4)
model = sg.graft(base, tuned, mask)
"""

from importlib import import_module

# module -> its public names, which are imported on first access: putting a patch on a model needs only torch and transformers
_MODULES = {
    "api": ("localize",),
    "losses": ("fisher",),
    "curves": ("curve", "plot_curve"),
    "analysis": ("by_kind", "overlaps", "plot_mask", "plot_masks"),
    "support.errors": (
        "GraftError",
        *("DataError", "MaskError", "ModelError", "ParamsError", "StorageError", "TrainingError"),
    ),
    "grafting.mask": ("GraftMask",),
    "grafting.mask_files": ("load_mask",),
    "grafting.region": ("Region",),
    "grafting.scores": ("mask_of",),
    "modules.grafts": ("graft", "grafted"),
    "modules.swapping": ("active",),
    "localizers.registry": ("methods", "register"),
    "merging.merge": ("merge",),
    "calibration": ("calibration_error",),
    "checkpoints.pairs": ("read_pair",),
    "patches.exact": ("diff",),
    "patches.mixed": ("mixed",),
    "patches.patch": ("Patch",),
    "modules.masked": ("masked_optimizer",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [*_PLACES, "__version__"]


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
