"""Settings of the search for the smallest graft, and the rules between them and the main pipeline."""

from typing import Any

from pydantic import Field

from skill_grafting.settings import Name, Section, Share, Tasks
from stages.workflow.core.rules import Choice, Values, unknown_localizers


class SmallestParams(Section):
    localizers: list[Name]
    tasks: Tasks
    gain: Share
    largest: Share
    precision: float = Field(gt=1)


SECTIONS: dict[str, Any] = {"smallest": SmallestParams}
TASKS = (Choice("smallest.tasks"),)


def problems(values: Values) -> list[str]:
    """Localizers have sections of their own."""
    return unknown_localizers(values, "smallest.localizers", values["smallest"].localizers)
