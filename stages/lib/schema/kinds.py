"""Kinds of values that settings have."""

from typing import Annotated

from pydantic import Field, StringConstraints

# A dash would let two cells share a DVC stage name: `a@b-c-1` is both (a, b-c) and (a-b, c).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*$")]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0, le=1e12)]
