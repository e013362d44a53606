"""Types of settings of tasks and stages."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from skill_grafting.support.fields import Rate

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
