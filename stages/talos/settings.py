"""Settings of task arithmetic with localized vectors, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from skill_grafting.support.fields import Count, Positive, Section, Weight
from stages.text.tasks.settings import Name, Optimizer, Part, Rates, Schedule, Share, Tasks, Values, get_by_path
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, not_among, unknown_localizers

# besides these, each localizer trains the parameters that it selects
METHODS = ("full", "graft", "full_matched", "linear", "attention")


class TalosParams(Section):
    tasks: Tasks
    sparsity: Share
    test_max: Count
    dev_max: Count


class SensitivityParams(Section):
    pruned: Share


class EditTraining(Section):
    optimizer: Optimizer
    learning_rates: Rates
    schedule: Schedule
    weight_decay: Part
    clip_norm: Weight
    dropout: Part | None
    batch_size: Positive


class EditParams(Section):
    methods: list[Name]
    training: EditTraining


class Addition(Section):
    mergers: list[Literal["ties", "dare"]]
    ties_share: Share
    dare_share: Share


class Negation(Section):
    controls: dict[Name, Name]
    retention: Share


class ArithmeticParams(Section):
    methods: list[Name]
    points: int = Field(ge=2, le=1001)
    addition: Addition
    negation: Negation


class AlphaGrid(Section):
    pairs: dict[Name, Name]
    reach: float = Field(ge=1, le=100)
    points: int = Field(ge=3, le=101)
    rows: Positive


class DisentangleParams(Section):
    methods: list[Name]
    grid: AlphaGrid


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    talos: TalosParams
    sensitivity: SensitivityParams
    edit: EditParams
    arithmetic: ArithmeticParams
    disentangle: DisentangleParams


TASKS = (
    Choice("talos.tasks", least=2),
    Choice("arithmetic.negation.controls", "talos.tasks"),
    Choice("disentangle.grid.pairs", "talos.tasks"),
)


def problems(values: Values) -> Iterator[str]:
    """Methods choose from other lists, and no task is its own control.  A stage that an empty list switches off has no rules."""
    if is_on(values, "talos"):
        yield from unknown_localizers(values, "edit.methods", values["edit"].methods, METHODS)
    tables = {"arithmetic": "negation.controls", "disentangle": "grid.pairs"}
    for section in tables:
        yield from not_among(values, f"{section}.methods", "edit.methods")
    for section, setting in tables.items():
        for task, other in get_by_path(values, f"{section}.{setting}").items() if is_on(values, section) else ():
            if task == other:
                yield f"{section}.{setting}.{task}: {task} is the task itself"
