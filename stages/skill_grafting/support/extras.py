"""Packages that few functions need, and that pip installs on request."""

from importlib import import_module
from types import ModuleType

from .errors import GraftError

# package -> the extra of this one that has it
EXTRAS = {"matplotlib": "tables", "pandas": "tables", "peft": "merge"}


def optional(module: str) -> ModuleType:
    """Import a module of such a package; raises GraftError with what installs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise GraftError(f"needs the package {package}: pip install 'skill-grafting[{EXTRAS[package]}]'") from None
