"""Settings of multi-task learning, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from skill_grafting.support.fields import Count, Positive, Section
from stages.text.tasks.settings import AdamWParams, Name, Share, Tasks, Values
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, unknown_localizers


class MultitaskParams(Section):
    tasks: Tasks
    test_max: Count
    groups: dict[Name, list[Name]]


class JointParams(Section):
    paradigms: list[Literal["sgd", "adamw", "adamw_l1"]]
    step_factor: float | None = Field(gt=0, le=1000)
    eval_steps: Count
    adamw: AdamWParams


class SkillParams(Section):
    localizers: list[Name]
    sparsities: list[Share]


class TransferParams(Section):
    unions: dict[Name, list[Name]]
    purify_steps: Count
    purify_batch_size: Positive


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    multitask: MultitaskParams
    joint: JointParams
    skill: SkillParams
    transfer: TransferParams


TASKS = (
    Choice("multitask.tasks", least=2),
    Choice("multitask.groups", "multitask.tasks", least=2),
    Choice("transfer.unions", "multitask.tasks", least=2),
)


def problems(values: Values) -> Iterator[str]:
    """Names of groups and unions, and localizers.  Without joint models there are no rules."""
    if is_on(values, "joint") and is_on(values, "multitask"):
        yield from _name_problems(values)
        yield from unknown_localizers(values, "skill.localizers", values["skill"].localizers)


def _name_problems(values: Values) -> Iterator[str]:
    places = {f"multitask.groups.{name}": name for name in values["multitask"].groups}
    places |= {f"transfer.unions.{name}": name for name in values["transfer"].unions}
    taken = [*values["multitask"].tasks, *places.values()]
    for place, name in places.items():
        if taken.count(name) > 1:
            yield f"{place}: the name is taken, by a task or by another group or union"
