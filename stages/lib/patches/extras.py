"""Packages that the subcommands need and an installation without extras lacks."""

from collections.abc import Callable
from typing import Any

from ..errors import GraftError

EXTRA = "localize"


def with_extras(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, with one clear line in place of a traceback where a package is missing."""

    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == __package__.partition(".")[0]:
                raise  # a mistake of ours
            if missing == "stages":
                raise GraftError("takes settings from a project's params.yaml; run it there") from None
            raise GraftError(
                f"needs the package {missing}, which is not installed; pip install 'skill-grafting[{EXTRA}]'"
            ) from error

    return run
