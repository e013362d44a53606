"""Types of settings, and what all sections of them are."""

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1e12)]
Group = Literal["layers", "embeddings", "pooler", "lm_head"]
GROUPS = LAYERS, EMBEDDINGS, POOLER, LM_HEAD = get_args(Group)
# the group of what is new with a task, which has no pretrained values
HEAD = "head"
# how labels are read off a model of transformers
Mode = Literal["standard", "prompt", "autoregressive"]


class Section(BaseModel):
    """Immutable settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)
