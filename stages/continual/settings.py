"""Settings of continual learning, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from skill_grafting.support.fields import Count, Positive, Section
from stages.text.tasks.settings import Name, Tasks, Values
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, not_among


class SequenceParams(Section):
    methods: list[Literal["naive", "grafting", "replay", "ewc"]]
    orders: list[Name]
    test_max: Count


class NoParams(Section):
    """A method that needs nothing else."""


class ReplayParams(Section):
    examples: Positive


class EwcParams(Section):
    strengths: list[Annotated[float, Field(ge=0, le=1e12)]] = Field(min_length=1)
    fisher: Literal["empirical", "expected"]
    examples: Positive


class MethodParams(Section):
    naive: NoParams
    grafting: NoParams
    replay: ReplayParams
    ewc: EwcParams


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    sequence: SequenceParams
    order: dict[Name, Tasks]
    method: MethodParams


TASKS = (Choice("order", least=2),)


def problems(values: Values) -> Iterator[str]:
    """Orders are found by their names.  Without sequences no rules."""
    if is_on(values, "sequence"):
        yield from not_among(values, "sequence.orders", "order")
        for name in values["sequence"].orders:
            if "." in name:
                yield f"order: {name!r} has a dot in it, which stands between a section and its settings; use _ instead"
