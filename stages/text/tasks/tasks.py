"""Definitions of tasks: labels, prompt, metric and where its text comes from, as data.

The built-in tasks stand in tasks.yaml beside this file.  A user's own stand under `task:` in
params.yaml and are laid over the built-in one of the same name, field by field.
"""

import string
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from skill_grafting.support.errors import DataError, did_you_mean, plain_problem
from skill_grafting.support.fields import Section
from stages.text.tasks.prompts import Prompt
from stages.text.tasks.settings import Column
from stages.text.tasks.yaml12 import load_yaml

REGISTRY = Path(__file__).with_name("tasks.yaml")


class HubSource(Section):
    """A data set on the hub, for `datasets.load_dataset(path, name)`."""

    path: str
    name: str | None = None
    splits: dict[Literal["train", "dev", "test"], str] = Field(
        description="names of splits there, or the start of one: train[:1000]"
    )
    columns: dict[Column, str] = Field(
        description="a column's name, or a text put together from several: '{question} {answer}'"
    )
    labels: list[str] | None = Field(
        None, description="names of the integer labels, in order; null if they are names already"
    )
    revision: str | None = Field(None, description="commit, tag or branch; null for the newest")
    files: dict[Literal["train", "dev", "test"], str] | None = Field(
        None, description="pattern of the files of a split, to leave the rest of a large data set on the hub"
    )
    each: str | None = Field(None, description="column of lists: a row for each item, which texts call {item}")
    among: str | None = Field(
        None, description="column of lists: the label is the second of `labels` for an item in it, else the first"
    )

    @field_validator("columns")
    @classmethod
    def _check_texts(cls, columns: dict[str, str]) -> dict[str, str]:
        for text in columns.values():
            try:
                names = columns_in(text)
            except ValueError as error:
                raise ValueError(f"a column's name, or a text such as '{{question}} {{answer}}': {error}") from None
            if not all(names):
                raise ValueError("a column's name, or a text such as '{question} {answer}' with names in its braces")
        return columns


def columns_in(text: str) -> list[str]:
    """Names of the columns of a text such as '{question} {answer}'; one without braces is a name itself."""
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None] if "{" in text else [text]


class PackagedSource(Section):
    """A data set inside a file of a package index (packages.yaml), and the reader that knows its form."""

    package: str
    reader: str
    member: str | None = None


class TaskSpec(Section):
    """One task; `name` is how params.yaml, stages and folders call it."""

    name: str
    title: str
    kind: str = Field(description="what sort of skill this is, for instance 'movie sentiment'")
    labels: list[str] = Field(min_length=2, description="label names; their order is the order of the logits")
    metric: Literal["accuracy", "f1", "mcc"] = "accuracy"
    positive: str | None = Field(
        None,
        description="the label that binary F1 counts; null for macro F1, of the labels that are in the test rows or predicted",
    )
    prompt: Prompt | None = Field(None, description="for masked language models")
    causal_prompt: Prompt | None = Field(None, description="for causal language models: {mask} comes last")
    hub: HubSource | None = None
    packaged: PackagedSource | None = None
    parts: list[str] | None = Field(
        None, min_length=2, description="tasks with the same labels that this one is made of, instead of a source"
    )
    local_name: str | None = Field(None, description="folder under data.root, if it isn't the task's name")
    relabel: dict[str, str] | None = Field(
        None, description="source label -> label; rows with other labels are dropped"
    )
    checkpoint: str | dict[int, str] | None = Field(
        None,
        exclude_if=lambda checkpoint: checkpoint is None,  # cards of tasks without one don't speak of it
        description="of finetune.source local or hub: the fine-tuned model, one for all seeds or `seed: checkpoint`",
    )
    holdout: float = Field(
        0.2, gt=0, lt=1, description="share of rows that becomes test when the source has no test split"
    )

    @classmethod
    def read_as(cls, name: str, labels: list[str], mode: str, prompt: Prompt | dict | None = None) -> "TaskSpec":
        """The task of a model whose labels are read off in this mode; pydantic's ValidationError for a prompt that can't be."""
        prompts = {"prompt" if mode == "prompt" else "causal_prompt": prompt}
        return cls(name=name, title=name, kind=mode, labels=labels, **prompts)

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _seeds_are_numbers(cls, checkpoint: object) -> object:
        """Keys of JSON, in which cards are, are texts."""
        if not isinstance(checkpoint, dict):
            return checkpoint
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: name for key, name in checkpoint.items()}

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: list[str]) -> list[str]:
        if len({*labels}) < len(labels):
            raise ValueError("labels that differ from each other")
        if any(label != label.strip() or not label for label in labels):  # those of files are stripped
            raise ValueError("labels of which none is empty or has a space around it")
        return labels

    @field_validator("positive", "prompt", "causal_prompt", "relabel")
    @classmethod
    def _check_use_of_labels(cls, value: object, info: ValidationInfo) -> object:
        labels = info.data.get("labels")  # missing if they are wrong themselves
        if labels and info.field_name == "positive" and value is not None and value not in labels:
            raise ValueError(f"one of the labels {', '.join(labels)}")
        if labels and isinstance(value, dict) and (strange := {*value.values()} - {*labels}):
            named = ", ".join(f"{name!r}{did_you_mean(name, labels)}" for name in sorted(strange))
            raise ValueError(f"a mapping to the labels {', '.join(labels)}, and {named} is none")
        if labels and isinstance(value, Prompt) and {*value.verbalizer} != {*labels}:
            names = ", ".join(value.verbalizer)
            raise ValueError(f"a prompt whose verbalizer has exactly the labels {', '.join(labels)}, not {names}")
        return value

    @field_validator("causal_prompt")
    @classmethod
    def _check_end(cls, prompt: Prompt | None) -> Prompt | None:
        if prompt and not prompt.template.endswith("{mask}"):
            raise ValueError("a prompt whose template ends with {mask}: a causal model sees only what stands before it")
        return prompt

    @property
    def is_pair(self) -> bool:
        """True if a prompt or the hub's columns have a second sentence."""
        prompts = any("{sentence2" in prompt.template for prompt in (self.prompt, self.causal_prompt) if prompt)
        return prompts or bool(self.hub and "sentence2" in self.hub.columns)

    def checkpoint_of(self, seed: int) -> str | None:
        """The fine-tuned model to take over for a seed, None if there is none."""
        return self.checkpoint.get(seed) if isinstance(self.checkpoint, dict) else self.checkpoint

    def prompt_for(self, mode: str) -> Prompt | None:
        """The prompt that this mode of reading labels uses, None for standard fine-tuning."""
        return {"standard": None, "prompt": self.prompt}.get(mode, self.causal_prompt)

    def prompt_problems(self, mode: str) -> list[str]:
        """Reasons why this task can't be used in this mode, as lines for the user."""
        if mode == "standard" or self.prompt_for(mode):
            return []
        field = "prompt" if mode == "prompt" else "causal_prompt"
        return [f"task.{self.name}.{field}: model.mode={mode} needs a template and a verbalizer here"]


@cache
def registry() -> dict[str, dict[str, Any]]:
    """The built-in tasks as plain data, by name."""
    return load_yaml(REGISTRY, DataError)


def packaged_tasks() -> list[str]:
    """Names of the built-in tasks that need no hub and no files of the user's."""
    return [name for name, entry in registry().items() if "packaged" in entry]


def unknown_tasks(place: str, names: Iterable[str], custom: Mapping[str, Any]) -> list[str]:
    """A problem for each of the names at `place` that is no built-in task and none of the user's own, with the nearest one."""
    known = {*registry(), *custom}
    hint = f"known: {', '.join(sorted(known))}; define your own under `task:`"
    strange = [name for name in names if name not in known]
    return [f"{place}: unknown task {name!r}{did_you_mean(name, known)}; {hint}" for name in strange]


def resolve_tasks(custom: dict[str, dict[str, Any]]) -> tuple[dict[str, TaskSpec], list[str]]:
    """Give every known task by name, the user's own laid over the built-in, without those that have a problem, and the problems."""
    specs, problems = {}, []
    for name in {**registry(), **custom}:
        try:
            merged = {"title": name, "kind": name, **registry().get(name, {}), **custom.get(name, {}), "name": name}
            specs[name] = TaskSpec.model_validate(merged)
        except ValidationError as error:
            problems += [plain_problem(problem, f"task.{name}", TaskSpec) for problem in error.errors()]
    return specs, problems or [line for spec in specs.values() for line in _part_problems(spec, specs)]


def _part_problems(spec: TaskSpec, specs: dict[str, TaskSpec]) -> Iterator[str]:
    place = f"task.{spec.name}.parts"
    for part in spec.parts or ():
        if part not in specs:
            yield f"{place}: unknown task {part!r}{did_you_mean(part, specs)}"
        elif specs[part].parts:
            yield f"{place}: {part} has parts itself; name those"
        elif {*specs[part].labels} != {*spec.labels}:
            theirs, ours = (", ".join(task.labels) for task in (specs[part], spec))
            yield f"{place}: {part} has the labels {theirs}, {spec.name} has {ours}"
