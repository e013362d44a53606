"""Settings of the main pipeline, which all others build on, and the rules between them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from stages.lib.data.tasks import COMPLETING, TaskSpec, resolve_tasks, unknown_tasks
from stages.lib.localizers.settings import NAMES, SETTINGS, NoSettings, name_problems
from stages.lib.settings import (
    Choice,
    DataParams,
    FinetuneParams,
    ModelParams,
    Name,
    OodParams,
    RuntimeParams,
    Section,
    Seed,
    Share,
    at,
    told,
)


class MovementParams(Section):
    keep: Share = Field(description="share of the region whose order by movement is stored")


class GraftParams(Section):
    localizer: Name = Field(description="way to find the mask")
    region: list[Literal["layers", "embeddings", "pooler", "lm_head"]] = Field(min_length=1)
    sparsity: Share = Field(description="selected / graftable parameters, the final budget")
    rule: Literal["top_k", "threshold"]


# one section for each file of the folder
LocalizerParams = create_model(
    "LocalizerParams",
    __base__=Section,
    **{name: (SETTINGS[name], ...) if name in SETTINGS else (NoSettings, NoSettings()) for name in NAMES},
)


class CalibrationParams(Section):
    bins: int = Field(ge=2, le=1000, description="equal-width confidence bins of ECE")
    histogram_bins: int = Field(ge=2, le=1000, description="bars of the confidence histogram")
    wise_alphas: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=1, description="weights of the fine-tuned model among which dev chooses that of WiSE-FT"
    )
    graft_alphas: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        description="weights of the graft between the pretrained model and the graft, for the frontier"
    )
    refit_head_steps: int = Field(
        ge=0,
        description="steps of training, as in fine-tuning, for a new head alone, on the graft and as a control on the fine-tuned model; 0 for none",
    )


class SummaryParams(Section):
    least_gain: Share = Field(
        description="score that training has to gain over the pretrained model for a relative gain to be said"
    )


SECTIONS: dict[str, Any] = {
    "tasks": Annotated[list[Name], Field(min_length=1)],
    "seeds": Annotated[list[Seed], Field(min_length=1)],
    "task": dict[Name, dict[str, Any]],
    "data": DataParams,
    "model": ModelParams,
    "runtime": RuntimeParams,
    "finetune": FinetuneParams,
    "movement": MovementParams,
    "graft": GraftParams,
    "localizer": LocalizerParams,
    "calibration": CalibrationParams,
    "ood": OodParams,
    "summary": SummaryParams,
}


TASKS = (Choice("tasks"), Choice("ood.sets", by_key=True))
# shares of the region that a mask has at least one parameter of
SPARSITIES = {"graft.sparsity": None}


def problems(values: dict[str, Any]) -> list[str]:
    """Errors between settings that are fine by themselves."""
    rules = (
        lambda values: resolve_tasks(values["task"])[1],
        _set_problems,
        _label_problems,
        _mode_problems,
        lambda values: size_problems(values, "graft.sparsity", [values["graft"].sparsity]),
        _column_problems,
        lambda values: name_problems(values, "graft.localizer", [values["graft"].localizer]),
        _checkpoint_problems,
        _region_problems,
        lambda values: _refit_problems(values, "model.mode", "standard"),
        lambda values: _refit_problems(values, "finetune.source", "train"),
    )
    return told(rules, values)


def size_problems(values: dict[str, Any], place: str, sparsities: list[float]) -> list[str]:
    """A problem for each of these shares of the region, which stand at `place`, that the stored orders are too short for."""
    keep, beyond = values["movement"].keep, "; raise movement.keep to at least that"
    return [f"{place}: {share} is more than movement.keep ({keep}){beyond}" for share in sparsities if share > keep]


def _region_problems(values: dict[str, Any]) -> list[str]:
    if values["finetune"].source != "train":
        return []
    trained = values["finetune"].train
    where = f"finetune.train ({', '.join(trained) or 'nothing'})"
    strange = [group for group in values["graft"].region if group not in trained]
    return [f"graft.region: {group!r} is not among {where}, so it never moves" for group in strange]


def _column_problems(values: dict[str, Any]) -> list[str]:
    problems, columns = [], values["data"].columns
    for group in (("sentence1", "label", "sentence2"), COMPLETING):
        names = {name: columns.get(name, name) for name in group if name in columns or name != "sentence2"}
        twice = [name for name in dict.fromkeys(names.values()) if [*names.values()].count(name) > 1]
        problems += [f"data.columns: two of {', '.join(names)} are the column {name!r}" for name in twice]
    return problems


def _set_problems(values: dict[str, Any]) -> Iterator[str]:
    for train, tests in values["ood"].sets.items():
        if train in tests:
            yield f"ood.sets.{train}: {train} is the task itself"


def _label_problems(values: dict[str, Any]) -> Iterator[str]:
    specs, _ = resolve_tasks(values["task"])
    for train, tests in values["ood"].sets.items():
        yield from unknown_tasks(f"ood.sets.{train}", tests, values["task"])
        for test in tests:
            if train in specs and test in specs and set(specs[train].labels) != set(specs[test].labels):
                theirs, ours = (", ".join(specs[name].labels) or "none" for name in (test, train))
                yield f"ood.sets.{train}: {test} has the labels {theirs}, {train} has {ours}"


def _checkpoint_problems(values: dict[str, Any]) -> list[str]:
    if (source := values["finetune"].source) == "train":
        return []
    (specs, _), seeds = resolve_tasks(values["task"]), values["seeds"]
    return [
        problem
        for name in values["tasks"]
        if name in specs
        for problem in told([_lacking_checkpoints], specs[name], seeds, source)
    ]


def _lacking_checkpoints(spec: TaskSpec, seeds: list[int], source: str) -> Iterator[str]:
    if lacking := [str(seed) for seed in seeds if not spec.checkpoint_of(seed)]:
        yield f"task.{spec.name}.checkpoint: finetune.source={source} needs one for the seed(s) {', '.join(lacking)}"


def _refit_problems(values: dict[str, Any], key: str, needed: str) -> Iterator[str]:
    steps = values["calibration"].refit_head_steps
    if steps and (found := at(values, key)) != needed:
        yield f"calibration.refit_head_steps: {steps} needs {key}={needed}, and that is {found}; 0 refits no head"


def _mode_problems(values: dict[str, Any]) -> list[str]:
    specs, _ = resolve_tasks(values["task"])
    used = [specs[name] for name in dict.fromkeys(values["tasks"]) if name in specs]
    return [problem for spec in used for problem in told([spec.prompt_problems], values["model"].mode)]
