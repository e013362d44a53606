"""Names, shapes and groups of a model's parameters, derived from its structure, and anatomy.json, which stores them.

Stages that only do arithmetic on tensors read that file instead of building the model, which would
cost them seconds of start-up.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..grafting.region import Region, named_weights
from ..support.errors import ModelError, plain_problem
from ..support.fields import HEAD
from ..support.io import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "anatomy.json"


@dataclass(frozen=True)
class ModelSpec:
    """Names, groups and shapes of a model's parameters; `parameters` counts the pretrained ones, without a new head."""

    name: str
    source: str
    revision: str | None  # for a model of the hub: the commit
    mode: str
    groups: dict[str, str]
    shapes: dict[str, list[int]]

    @property
    def pretrained(self) -> dict[str, list[int]]:
        """Shapes of the pretrained parameters by name."""
        return {name: shape for name, shape in self.shapes.items() if self.groups[name] != HEAD}

    @property
    def parameters(self) -> int:
        """Number of pretrained parameters, the second denominator of sparsity."""
        return sum(map(prod, self.pretrained.values()))

    def names(self, groups: list[str]) -> list[str]:
        """Names of the parameters of some groups, in the model's order."""
        return [name for name, group in self.groups.items() if group in groups]

    def region(self, groups: list[str], setting: str = "region") -> Region:
        """The graftable parameters; raises ModelError if there are none, which names the `setting` of the groups."""
        names = self.names(groups)
        if not names:
            there = ", ".join(group for group in dict.fromkeys(self.groups.values()) if group != HEAD)
            raise ModelError(f"{setting}: {self.name} has no parameters in {', '.join(groups)}; it has {there}")
        return Region({name: tuple(self.shapes[name]) for name in names})


def shapes_of(model: "PreTrainedModel") -> dict[str, list[int]]:
    """Shapes of a model's parameters by name."""
    return {name: list(parameter.shape) for name, parameter in named_weights(model).items()}


def read_anatomy(folder: Path) -> ModelSpec:
    """Read anatomy.json of a model folder; raises ModelError if it isn't there or is damaged."""
    # not needed to apply a patch
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(ModelSpec).validate_python(read_json(folder / FILE, ModelError))
    except ValidationError as error:
        raise ModelError(
            f"{folder / FILE}: damaged: {plain_problem(error.errors()[0], 'anatomy', ModelSpec)}"
        ) from None
