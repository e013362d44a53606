"""Types of settings, and the sections that texts, models and training take; params.yaml explains each setting."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from skill_grafting.support.fields import Count, Group, Mode, Positive, Rate, Section, Weight

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$", max_length=100)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rates = Annotated[list[Rate], Field(min_length=1)]
Tasks = list[Name] | None
Column = Literal["sentence1", "sentence2", "label"]
Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear"]
# section -> its settings
Values = dict[str, Any]


def get_by_path(values: object, key: str) -> Any:
    """The section or the setting of a dotted key."""
    for name in key.split("."):
        values = values[name] if isinstance(values, dict) else getattr(values, name)
    return values


class DataParams(Section):
    source: Literal["packaged", "hub", "local"]
    root: str
    columns: dict[Column, str]
    k: Annotated[int, Field(ge=1, le=1_000_000)] | None
    scarce: Literal["error", "split"]
    dev_share: Share
    test_max: Count


class ModelParams(Section):
    source: Literal["packaged", "hub", "local"]
    name: str = Field(min_length=1)
    revision: str | None
    root: str
    mode: Mode
    max_length: int = Field(ge=8, le=100_000)


class ResourceParams(Section):
    """The resources that stages side by side may use together (stages/workflow/run.py); no stage reads it."""

    gpus: Count | None
    stages_per_gpu: Positive
    memory_mib: Positive | None


class RuntimeParams(Section):
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["float32", "bfloat16"]
    threads: int = Field(ge=0, le=1024)
    batch_tokens: int = Field(ge=16)
    gradient_checkpointing: bool
    resources: ResourceParams


class FinetuneParams(Section):
    source: Literal["train", "local", "hub"]
    root: str
    optimizer: Optimizer
    learning_rates: Rates
    batch_sizes: list[Positive] = Field(min_length=1)
    steps_per_example: float = Field(gt=0)
    cap_k: Positive
    max_steps: Positive | None
    schedule: Schedule
    momentum: Part
    weight_decay: Part
    decay: Literal["all", "authors"]
    clip_norm: Weight
    dropout: Part | None
    l1: Weight
    train: list[Group]
    eval_steps: Count
    ties: Literal["loss", "first", "last"]


class WarmedUp(FinetuneParams):
    """The section `finetune` with a warm-up."""

    warmup_steps: Count


class OodParams(Section):
    sets: dict[Name, list[Name]]
    test_max: Count
    leaks: Literal["drop", "keep"]


class AdamWParams(Section):
    """Of the paradigms adamw and adamw_l1; sgd has the grid of `finetune`."""

    learning_rate: Rate
    schedule: Schedule
    weight_decay: Part
    l1: Weight
