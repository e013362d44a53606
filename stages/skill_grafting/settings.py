"""Types of settings, and the sections that the library uses; params.yaml explains each setting."""

from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$", max_length=100)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0, le=1e12)]
Rates = Annotated[list[Rate], Field(min_length=1)]
Tasks = list[Name] | None
Group = Literal["layers", "embeddings", "pooler", "lm_head"]
Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear"]
# section -> its settings
Values = dict[str, Any]


class Params(SimpleNamespace):
    """The settings that a stage asked for: whole sections, or sections with single settings."""


class Section(BaseModel):
    """Immutable settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


class DataParams(Section):
    source: Literal["packaged", "hub", "local"]
    root: str
    columns: dict[Literal["sentence1", "sentence2", "label", "prompt", "completion"], str]
    k: Annotated[int, Field(ge=1, le=1_000_000)] | None
    scarce: Literal["error", "split"]
    dev_share: Share
    test_max: Count


class ModelParams(Section):
    source: Literal["packaged", "hub", "local"]
    name: str = Field(min_length=1)
    revision: str | None
    root: str
    mode: Literal["standard", "prompt", "autoregressive", "generative"]
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
    checkpoint_seconds: Weight
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


class OodParams(Section):
    sets: dict[Name, list[Name]]
    test_max: Count
    leaks: Literal["drop", "keep"]


class AdamWParams(Section):
    """Of the paradigms adamw and adamw_l1; sgd has the grid of `finetune`."""

    learning_rate: Rate
    weight_decay: Part
    l1: Weight


def get_by_path(values: object, key: str) -> Any:
    """The section or the setting of a dotted key."""
    for name in key.split("."):
        values = values[name] if isinstance(values, dict) else getattr(values, name)
    return values
