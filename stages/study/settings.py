"""Settings of the single-task study, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from stages.lib.errors import did_you_mean
from stages.lib.localizers.names import NAMES
from stages.lib.settings import Name, Rate, Section, Seed, Share, is_on, not_among


class StudyParams(Section):
    tasks: list[Name] = Field(min_length=1, description="which of `tasks` the study is about")
    seeds: list[Seed] = Field(min_length=1, description="which of `seeds` the study is about")
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
    tasks: list[Name] = Field(min_length=1)
    seeds: list[Seed]
    max_steps: int | None = Field(ge=1, description="hard cap on the steps of retrain; null for none")


class WiseParams(Section):
    alphas: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=1, description="weights of the fine-tuned model"
    )
    seeds: list[Seed]


class PeftParams(Section):
    methods: list[Annotated[str, StringConstraints(pattern=r"^(lora|houlsby|pfeiffer)_[1-9][0-9]{0,4}$")]]
    tasks: list[Name] = Field(min_length=1)
    seeds: list[Seed]
    learning_rate: Rate
    batch_size: int = Field(ge=1)
    steps_per_example: float = Field(gt=0)
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")
    weight_decay: float = Field(ge=0, lt=1)


class ParadigmParams(Section):
    paradigms: list[Literal["sgd", "adamw", "adamw_l1", "standard"]] = Field(description="ways to fine-tune")
    tasks: list[Name] = Field(min_length=1)
    seeds: list[Seed]
    sparsities: list[Share] = Field(description="selected / graftable parameters of the grafts")
    learning_rate: Rate = Field(description="of adamw and adamw_l1; sgd has the grid of `finetune`")
    weight_decay: float = Field(ge=0, lt=1, description="of adamw and adamw_l1")
    l1: float = Field(ge=0, description="weight of the l1 norm of the movement in the loss of adamw_l1")
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")


class TrajectoryParams(Section):
    tasks: list[Name] = Field(min_length=1)
    seeds: list[Seed]
    every: int = Field(ge=1, description="steps of fine-tuning between checkpoints")
    region_step: int = Field(ge=1, description="the checkpoint whose regions are used")
    sparsities: list[Share] = Field(description="selected / graftable parameters of the regions")


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


def problems(values: dict[str, Any]) -> list[str]:
    """The study's lists choose from other lists.  A stage that an empty list switches off has no rules."""
    found = [problem for place, source in _choices(values) for problem in not_among(values, place, source)]
    return found + _paradigm_problems(values) + _sweep_problems(values)


def _choices(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every list of the study with the list that it chooses from, both as dotted keys."""
    if "study" in values:
        yield from ((f"study.{name}", name) for name in ("tasks", "seeds"))
    for section in [*SECTIONS][1:]:
        if is_on(values, section):
            lists = [name for name in ("tasks", "seeds") if hasattr(values[section], name)]
            # paradigms fine-tune anew, so they need no anchor and may be of any task
            sources = [name if section == "paradigm" else f"study.{name}" for name in lists]
            yield from ((f"{section}.{name}", source) for name, source in zip(lists, sources, strict=True))
    if is_on(values, "readout"):
        yield from ((f"readout.{name}", f"sweep.{name}") for name in ("localizers", "sparsities"))


def _paradigm_problems(values: dict[str, Any]) -> list[str]:
    if not is_on(values, "paradigm") or "model" not in values:
        return []
    if values["model"].mode == "standard" and "standard" in values["paradigm"].paradigms:
        return ["paradigm.paradigms: 'standard' is what model.mode=standard does anyway, as 'sgd'; take it out"]
    return []


def _sweep_problems(values: dict[str, Any]) -> list[str]:
    if not is_on(values, "sweep"):
        return []
    found = [
        f"sweep.localizers: unknown localizer {name!r}{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}"
        for name in values["sweep"].localizers
        if name not in NAMES
    ]
    keep = values["movement"].keep if "movement" in values else 1
    return found + [
        f"sweep.sparsities: {sparsity} is more than movement.keep ({keep}); raise movement.keep to at least that"
        for sparsity in values["sweep"].sparsities
        if sparsity > keep
    ]
