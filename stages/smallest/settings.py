"""Settings of the search for the smallest graft, and the rules between them and the main pipeline."""

from typing import Any

from pydantic import Field

from stages.lib.localizers.settings import name_problems
from stages.lib.settings import Choice, Name, Section, Share, Tasks


class SmallestParams(Section):
    localizers: list[Name] = Field(description="ways to find the region")
    tasks: Tasks
    gain: float = Field(gt=0, le=1, description="relative gain on dev that a graft has to bring")
    largest: Share = Field(description="share of the region beyond which nobody looks")
    precision: float = Field(
        gt=1, description="ratio of the size found to one that is too small, at most; 1 parameter is the least step"
    )


SECTIONS: dict[str, Any] = {"smallest": SmallestParams}

TASKS = (Choice("smallest.tasks"),)
# shares of the region that a mask has at least one parameter of
SPARSITIES = {"smallest.largest": None}


def problems(values: dict[str, Any]) -> list[str]:
    """Localizers have sections of their own."""
    return name_problems(values, "smallest.localizers", values["smallest"].localizers)
