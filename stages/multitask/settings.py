"""Settings of multi-task learning, and the rules between them and the main pipeline."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from skill_grafting.errors import did_you_mean
from skill_grafting.localizers.names import NAMES, SHARED
from skill_grafting.settings import AdamWParams, Count, Name, Positive, Section, Share, Tasks, Values
from stages.workflow.core.rules import Choice, is_on, unknown_localizers

# These learn from a base.  The paper takes none (figure 8), and shows larger ones (figures 11 and 12).
FROM_A_BASE = ("learned",)
WITH_SHARE = re.compile(rf"({'|'.join(FROM_A_BASE)})_(0|1|[01]\.[0-9]+)")


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


SECTIONS: dict[str, Any] = {
    "multitask": MultitaskParams,
    "joint": JointParams,
    "skill": SkillParams,
    "transfer": TransferParams,
}
TASKS = (
    Choice("multitask.tasks", least=2),
    Choice("multitask.groups", "multitask.tasks", least=2),
    Choice("transfer.unions", "multitask.tasks", least=2),
)


def read_name(name: str) -> tuple[str, float] | None:
    """(localizer, base as a share of the budget): `learned` has the base 0, `learned_0.1` one of 0.1.

    A localizer that learns from a base may be named with its share.  None if there is no such
    localizer, or the share is above 1.
    """
    if name in NAMES:
        return name, 0.0
    match = WITH_SHARE.fullmatch(name)
    return (match[1], float(match[2])) if match and float(match[2]) <= 1 else None


def problems(values: Values) -> Iterator[str]:
    """Names of groups and unions, and localizers.  Without joint models there are no rules."""
    if is_on(values, "joint") and is_on(values, "multitask"):
        yield from _name_problems(values)
        yield from _localizer_problems(values)


def _name_problems(values: Values) -> Iterator[str]:
    places = {f"multitask.groups.{name}": name for name in values["multitask"].groups}
    places |= {f"transfer.unions.{name}": name for name in values["transfer"].unions}
    taken = [*values["multitask"].tasks, *places.values()]
    for place, name in places.items():
        if taken.count(name) > 1:
            yield f"{place}: the name is taken, by a task or by another group or union"


def _localizer_problems(values: Values) -> Iterator[str]:
    named = values["skill"].localizers
    used = [read_name(name)[0] for name in named if read_name(name)]
    yield from unknown_localizers(values, "skill.localizers", used, SHARED)
    for name in named:
        if read_name(name) is None:
            yield (
                f"skill.localizers: unknown localizer {name!r}{did_you_mean(name, SHARED)}; known: {', '.join(SHARED)}, "
                "and learned_SHARE, such as learned_0.1"
            )
