"""Settings of multi-task learning, and the rules between them and the main pipeline."""

import re
from typing import Any, Literal

from pydantic import Field

from stages.lib.errors import did_you_mean
from stages.lib.localizers.settings import NAMES, SHARED, name_problems
from stages.lib.settings import AdamWParams, Choice, Name, Section, Share, Tasks, is_on, told

# These learn from a base.  The paper takes none (figure 8), and shows larger ones (figures 11 and 12).
FROM_A_BASE = ("learned", "attribution_learned")
WITH_SHARE = re.compile(rf"({'|'.join(FROM_A_BASE)})_(0|1|[01]\.[0-9]+)")


class MultitaskParams(Section):
    tasks: Tasks
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")
    groups: dict[Name, list[Name]] = Field(description="tasks that are alike, by a name for them")


class JointParams(Section):
    paradigms: list[Literal["sgd", "adamw", "adamw_l1"]] = Field(description="ways to fine-tune")
    step_factor: float | None = Field(
        gt=0, le=1000, description="steps as a multiple of those of a single task; null for the number of tasks"
    )
    eval_steps: int = Field(ge=0, description="steps between mean dev scores, best one kept; 0 keeps the last")
    adamw: AdamWParams


class SkillParams(Section):
    localizers: list[Name] = Field(description="ways to find the region of each task")
    sparsities: list[Share] = Field(description="selected / graftable parameters")


class TransferParams(Section):
    unions: dict[Name, list[Name]] = Field(description="further unions, of tasks that need not be alike")
    purify_steps: int = Field(ge=0, description="gradient steps on each union for all its tasks; 0 for none")
    purify_batch_size: int = Field(ge=1, description="examples per task and step")


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


def step_factor(values: dict[str, Any]) -> float:
    """Steps of joint training as a multiple of those of a single task (JointPlan.factor)."""
    return values["joint"].step_factor or len(values["multitask"].tasks)


# what the costs of stages grow with, besides single settings
COST_FACTORS = {"step_factor": step_factor}


def read_name(name: str) -> tuple[str, float] | None:
    """(localizer, base as a share of the budget): `learned` has the base 0, `learned_0.1` one of 0.1.

    A localizer that learns from a base may be named with its share.  None if that isn't the name of
    anything, or the share is above 1.
    """
    if name in NAMES:
        return name, 0.0
    match = WITH_SHARE.fullmatch(name)
    return (match[1], float(match[2])) if match and float(match[2]) <= 1 else None


# shares of the region that a mask has at least one parameter of, each with what else switches its stage off by being empty
SPARSITIES = {"skill.sparsities": "multitask.tasks"}


def problems(values: dict[str, Any]) -> list[str]:
    """Names of groups and unions, and localizers.  Without joint models there are no rules."""
    rules = [_name_problems, _localizer_problems] if is_on(values, "joint") and is_on(values, "multitask") else []
    return told(rules, values)


def _name_problems(values: dict[str, Any]) -> list[str]:
    places = {f"multitask.groups.{name}": name for name in values["multitask"].groups}
    places |= {f"transfer.unions.{name}": name for name in values["transfer"].unions}
    taken = [*(values["multitask"].tasks or []), *places.values()]  # null where `tasks` is no list itself
    return [
        f"{place}: the name is taken, by a task or by another group or union"
        for place, name in places.items()
        if taken.count(name) > 1
    ]


def _localizer_problems(values: dict[str, Any]) -> list[str]:
    named = values["skill"].localizers
    used = [read_name(name)[0] for name in named if read_name(name)]
    return name_problems(values, "skill.localizers", used, SHARED) + [
        f"skill.localizers: unknown localizer {name!r}{did_you_mean(name, SHARED)}; known: {', '.join(SHARED)}, "
        "and learned_SHARE, such as learned_0.1"
        for name in named
        if read_name(name) is None
    ]
