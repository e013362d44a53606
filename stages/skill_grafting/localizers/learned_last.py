"""The learned mask of the last step, which looks at no dev row: `learned` with other settings."""

from dataclasses import replace
from typing import Literal

from . import learned


class LastLearning(learned.Learning):
    """What differs from `learned`."""

    select: Literal["last", "authors"] = "last"


LOCALIZER = replace(
    learned.LOCALIZER, about="learned as by the paper, the mask of the last step", settings=LastLearning
)
