"""The library: of the project `stages.lib`, installed the package `skill_grafting`.

from skill_grafting import grafted, load_graft, open_patch
"""

from importlib import import_module

__all__ = ["grafted", "load_graft", "open_patch"]


def __getattr__(name: str) -> object:
    """The functions that apply a patch, which take torch, loaded when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".patches.live", __package__), name)
