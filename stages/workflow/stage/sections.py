"""Settings of the main pipeline, which all others build on, and the rules between them."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from skill_grafting.support.fields import Group, Section
from stages.text.tasks.settings import (
    DataParams,
    FinetuneParams,
    ModelParams,
    Name,
    OodParams,
    RuntimeParams,
    Seed,
    Share,
    Values,
)
from stages.text.tasks.tasks import resolve_tasks, unknown_tasks
from stages.workflow.stage.rules import Choice, unknown_localizers


class GraftParams(Section):
    localizer: Name
    region: list[Group] = Field(min_length=1)
    sparsity: Share


class LocalizerParams(Section):
    """What differs from the defaults of a localizer or of what a variant is `of`, by name; registry.py checks it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Any]]


class CalibrationParams(Section):
    bins: int = Field(ge=2, le=1000)
    histogram_bins: int = Field(ge=2, le=1000)
    wise_alphas: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=1)
    graft_alphas: list[Annotated[float, Field(gt=0, lt=1)]]


class SummaryParams(Section):
    least_gain: Share


class Settings(Section):
    """What stands in params.yaml.

    A stage gets the part that its entry in dvc.yaml lists; to ask for anything else is an AttributeError.
    """

    tasks: Annotated[list[Name], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    task: dict[Name, dict[str, Any]]
    data: DataParams
    model: ModelParams
    runtime: RuntimeParams
    finetune: FinetuneParams
    graft: GraftParams
    localizer: LocalizerParams
    calibration: CalibrationParams
    ood: OodParams
    summary: SummaryParams


TASKS = (Choice("tasks"), Choice("ood.sets", by_key=True))


def problems(values: Values) -> Iterator[str]:
    """Problems between settings that are valid by themselves."""
    yield from _set_problems(values)
    yield from _task_problems(values)
    yield from unknown_localizers(values, "graft.localizer", [values["graft"].localizer])
    yield from _region_problems(values)


def _region_problems(values: Values) -> Iterator[str]:
    trained = values["finetune"].train
    where = f"finetune.train ({', '.join(trained) or 'nothing'})"
    for group in values["graft"].region:
        if values["finetune"].source == "train" and group not in trained:
            yield f"graft.region: {group!r} is not among {where}, so it never moves"


def _set_problems(values: Values) -> Iterator[str]:
    specs, _ = resolve_tasks(values["task"])
    for train, tests in values["ood"].sets.items():
        if train in tests:
            yield f"ood.sets.{train}: {train} is the task itself"
        yield from unknown_tasks(f"ood.sets.{train}", tests, values["task"])
        for test in tests:
            if train in specs and test in specs and {*specs[train].labels} != {*specs[test].labels}:
                theirs, ours = (", ".join(specs[name].labels) or "none" for name in (test, train))
                yield f"ood.sets.{train}: {test} has the labels {theirs}, {train} has {ours}"


def _task_problems(values: Values) -> Iterator[str]:
    (specs, _), source = resolve_tasks(values["task"]), values["finetune"].source
    for spec in (specs[name] for name in values["tasks"] if name in specs):
        yield from spec.prompt_problems(values["model"].mode)
        lacking = [str(seed) for seed in values["seeds"] if not spec.checkpoint_of(seed)]
        if source != "train" and lacking:
            yield (
                f"task.{spec.name}.checkpoint: finetune.source={source} needs one for the seed(s) {', '.join(lacking)}"
            )
