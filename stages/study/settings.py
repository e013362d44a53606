"""Settings of the single-task study, and the rules between them and the main pipeline."""

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from stages.lib.localizers.settings import name_problems
from stages.lib.settings import AdamWParams, Choice, Name, Rate, Section, Share, Tasks, is_on, not_among, told
from stages.workflow.core.sections import size_problems


class StudyParams(Section):
    tasks: Tasks
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")


class AnchorParams(Section):
    pruned: list[Share] = Field(description="share of the region that stays, by movement, where the rest is set to 0")


class SweepParams(Section):
    localizers: list[Name] = Field(description="ways to find the region")
    sparsities: list[Share] = Field(description="selected / graftable parameters")


class ReadoutParams(Section):
    readouts: list[Literal["graft", "retrain", "reset", "prune"]] = Field(description="uses of a mask")
    localizers: list[Name] = Field(description="whose masks; among sweep.localizers")
    sparsities: list[Share] = Field(description="masks of these sizes; among sweep.sparsities")
    tasks: Tasks
    learning_rates: list[Rate] = Field(min_length=1, description="grid of retrain, chosen on dev")


class WiseParams(Section):
    alphas: list[Annotated[float, Field(ge=0, le=1)]] = Field(description="weights of the fine-tuned model")


def _method(name: str) -> str:
    if not re.fullmatch(r"(lora|houlsby|pfeiffer)_[1-9][0-9]{0,4}", name):
        raise ValueError("lora_RANK, houlsby_SIZE or pfeiffer_SIZE, for instance lora_8")
    return name


class PeftTraining(Section):
    """With AdamW, in as many steps of as many examples as the whole model was fine-tuned in."""

    learning_rates: list[Rate] = Field(min_length=1, description="grid, chosen on dev; falling to 0")
    weight_decay: float = Field(ge=0, lt=1)
    clip_norm: float = Field(ge=0, description="largest gradient norm; 0 switches clipping off")


class PeftParams(Section):
    methods: list[Annotated[str, AfterValidator(_method)]]
    tasks: Tasks
    training: PeftTraining


class ParadigmParams(Section):
    paradigms: list[Literal["sgd", "adamw", "adamw_l1", "standard"]] = Field(description="ways to fine-tune")
    tasks: Tasks
    sparsities: list[Share] = Field(description="selected / graftable parameters of the grafts")
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")
    adamw: AdamWParams


class Checkpoints(Section):
    every: int = Field(ge=1, description="steps of fine-tuning between checkpoints")
    region_step: int = Field(ge=1, description="the checkpoint whose regions are used")
    sparsities: list[Share] = Field(min_length=1, description="selected / graftable parameters of the regions")


class TrajectoryParams(Section):
    tasks: Tasks
    checkpoints: Checkpoints


SECTIONS: dict[str, Any] = {
    "study": StudyParams,
    "anchor": AnchorParams,
    "sweep": SweepParams,
    "readout": ReadoutParams,
    "wise": WiseParams,
    "peft": PeftParams,
    "paradigm": ParadigmParams,
    "trajectory": TrajectoryParams,
}


# what fine-tunes anew needs no anchor, so paradigms may be of any task
TASKS = (
    Choice("study.tasks"),
    Choice("paradigm.tasks"),
    *(Choice(f"{section}.tasks", "study.tasks") for section in ("readout", "peft", "trajectory")),
)
# shares of the region that a mask has at least one parameter of, each with what else switches its stage off by being empty
SPARSITIES = {"sweep.sparsities": "study.tasks", "paradigm.sparsities": None, "trajectory.checkpoints.sparsities": None}


def problems(values: dict[str, Any]) -> list[str]:
    """Read-outs are of masks of the sweep.  A stage that an empty list switches off has no rules."""
    rules = [_readout_problems]
    if is_on(values, "paradigm"):
        rules.append(_paradigm_problems)
    if is_on(values, "sweep"):
        rules.append(lambda values: name_problems(values, "sweep.localizers", values["sweep"].localizers))
        if is_on(values, "study"):
            rules.append(lambda values: size_problems(values, "sweep.sparsities", values["sweep"].sparsities))
    return told(rules, values)


def _readout_problems(values: dict[str, Any]) -> list[str]:
    # DVC looks for the mask of each point, whatever the tasks are
    chosen = values["readout"]
    if not (chosen.readouts and chosen.localizers and chosen.sparsities):
        return []
    rules = [partial(not_among, values, f"readout.{name}", f"sweep.{name}") for name in ("localizers", "sparsities")]
    return told(rules)


def _paradigm_problems(values: dict[str, Any]) -> list[str]:
    if values["model"].mode == "standard" and "standard" in values["paradigm"].paradigms:
        return ["paradigm.paradigms: 'standard' is what model.mode=standard does anyway, as 'sgd'; take it out"]
    return []
