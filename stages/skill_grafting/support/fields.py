"""Types of settings, and what all sections of them are."""

from typing import Annotated, Any, Literal, get_args

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
GROUPS = LAYERS, EMBEDDINGS, POOLER, LM_HEAD = get_args(Group)
# the group of what is new with a task, which has no pretrained values
HEAD = "head"
Mode = Literal["standard", "prompt", "autoregressive"]
Column = Literal["sentence1", "sentence2", "label"]
Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear"]
# section -> its settings
Values = dict[str, Any]


class Section(BaseModel):
    """Immutable settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)


def get_by_path(values: object, key: str) -> Any:
    """The section or the setting of a dotted key."""
    for name in key.split("."):
        values = values[name] if isinstance(values, dict) else getattr(values, name)
    return values
