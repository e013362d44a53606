"""The learned mask as the paper's authors choose it: `learned` with other settings."""

from dataclasses import replace
from typing import Literal

from . import learned


class AuthorsLearning(learned.Learning):
    """What differs from `learned`."""

    select: Literal["last", "authors"] = "authors"


LOCALIZER = replace(
    learned.LOCALIZER,
    about="learned as by the paper, the mask of the step that its authors choose",
    settings=AuthorsLearning,
)
