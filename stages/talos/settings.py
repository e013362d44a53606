"""Settings of task arithmetic with localized vectors, and the rules between them and the main pipeline."""

from typing import Any, Literal

from pydantic import Field

from stages.lib.errors import did_you_mean
from stages.lib.localizers.settings import SHARED, name_problems
from stages.lib.settings import Choice, Name, Rate, Section, Share, Tasks, at, is_on, not_among, told

# besides these, each localizer of SHARED trains the parameters that it selects
METHODS = ("full", "graft", "full_matched", "linear", "attention")


class TalosParams(Section):
    tasks: Tasks
    sparsity: Share = Field(description="selected / graftable parameters of the masks that are trained within")
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")
    dev_max: int = Field(ge=0, description="dev rows of each task that alpha is chosen on; 0 for all")


class SensitivityParams(Section):
    pruned: Share = Field(description="share of the region that is set to 0")
    variants: list[
        Literal["other_draw", "single_round", "no_attenuation", "all_labels", "true_label", "raw_logit", "saliency"]
    ] = Field(description="other ways to calibrate a talos mask, compared with the usual one")


class EditTraining(Section):
    optimizer: Literal["sgd", "adamw"]
    learning_rates: list[Rate] = Field(min_length=1, description="grid, chosen on dev for each method and task")
    schedule: Literal["constant", "linear"]
    weight_decay: float = Field(ge=0, lt=1)
    clip_norm: float = Field(
        ge=0,
        description="largest norm of the gradient of the tensors that are trained, in part or whole; 0 for no clipping",
    )
    dropout: float | None = Field(ge=0, lt=1, description="null keeps the model's own")
    batch_size: int = Field(ge=1, description="examples per step; as many steps as see the examples that full saw")


class EditParams(Section):
    methods: list[Name] = Field(description="how task vectors are made")
    training: EditTraining


class Addition(Section):
    mergers: list[Literal["ties", "dare"]] = Field(description="further ways to add the vectors of full")
    ties_share: Share = Field(description="share of each vector that TIES keeps, by movement")
    dare_share: Share = Field(description="share of each vector that DARE keeps, at random")


class Negation(Section):
    controls: dict[Name, Name] = Field(
        description="task that is negated -> task that has to keep its accuracy; the first other of talos.tasks for those not named"
    )
    retention: Share = Field(description="share of its zero-shot accuracy that a control keeps on dev")
    control_margin: float = Field(ge=0, le=1, description="how far above chance a control has to start")


class ArithmeticParams(Section):
    methods: list[Name] = Field(description="whose vectors are added and negated; among edit.methods")
    points: int = Field(ge=2, le=1001, description="alphas from 0 to 1 that dev chooses from")
    addition: Addition
    negation: Negation


class AlphaGrid(Section):
    pairs: dict[Name, Name] = Field(description="task -> task beside it")
    reach: float = Field(ge=1, le=100, description="alphas go from -reach to reach")
    points: int = Field(ge=3, le=101, description="alphas on each axis")
    rows: int = Field(ge=1, description="test rows of each task that are predicted")


class DisentangleParams(Section):
    methods: list[Name] = Field(description="whose vectors are laid over each other; among edit.methods")
    grid: AlphaGrid


SECTIONS: dict[str, Any] = {
    "talos": TalosParams,
    "sensitivity": SensitivityParams,
    "edit": EditParams,
    "arithmetic": ArithmeticParams,
    "disentangle": DisentangleParams,
}


TASKS = (
    Choice("talos.tasks", least=2),
    Choice("arithmetic.negation.controls", "talos.tasks"),
    Choice("disentangle.grid.pairs", "talos.tasks"),
)
# shares of the region that a mask has at least one parameter of
SPARSITIES = {"talos.sparsity": None}


def problems(values: dict[str, Any]) -> list[str]:
    """Methods choose from other lists, and no task is its own control.  A stage that an empty list switches off has no rules."""
    tables = {"arithmetic": "negation.controls", "disentangle": "grid.pairs"}
    return (
        told([_method_problems] if is_on(values, "talos") else [], values)
        + [line for section in tables for line in told([not_among], values, f"{section}.methods", "edit.methods")]
        + [line for section, setting in tables.items() for line in told([_own_tasks], values, section, setting)]
    )


def _method_problems(values: dict[str, Any]) -> list[str]:
    known, methods = (*METHODS, *SHARED), values["edit"].methods
    return name_problems(values, "edit.methods", [name for name in methods if name in SHARED], SHARED) + [
        f"edit.methods: unknown method {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
        for name in methods
        if name not in known
    ]


def _own_tasks(values: dict[str, Any], section: str, setting: str) -> list[str]:
    return [
        f"{section}.{setting}.{task}: {task} is the task itself"
        for task, other in at(values, f"{section}.{setting}").items()
        if task == other and is_on(values, section)
    ]
