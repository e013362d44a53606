"""Recipes of merges, in the form that users of mergekit know: models with weight and density, a method, and the base that they came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from ..merging.ways import reads
from ..support.errors import ParamsError, plain_problem
from ..support.fields import Section

# mergekit's methods, and what `merge` calls those that it names otherwise
Method = Literal[
    "linear", "task_arithmetic", "ties", "dare_ties", "dare_linear", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties"
]  # fmt: skip
OTHERWISE = {"linear": "average", "task_arithmetic": "arithmetic", "dare_linear": "dare"}
Weight = Annotated[float, Field(description="what a model's vector is multiplied by")]
Density = Annotated[float, Field(gt=0, le=1, description="the share of a vector that stays")]


class _Recipe(Section):
    model_config = ConfigDict(strict=False)  # as YAML reads 1e-3 as a text


class OfModel(_Recipe):
    """What differs by model."""

    weight: Weight | None = None
    density: Density | None = None


class OfAll(OfModel):
    """What holds for all models, or for those that say nothing else."""

    normalize: bool | None = None
    rescale: bool = True
    int8_mask: bool = False
    lambda_: float = Field(1.0, alias="lambda")
    gamma: float = Field(0.01, ge=0, lt=1)
    epsilon: float = Field(0.15, ge=0, lt=1)

    @field_validator("int8_mask")
    @classmethod
    def _refuse(cls, asked: bool) -> bool:
        if asked:
            raise ValueError(
                "false or left out: signs are counted in float64, a piece at a time, so it would save nothing"
            )
        return asked


class Source(_Recipe):
    """A model: a folder or hub id."""

    model: str
    parameters: OfModel = OfModel()


class Recipe(_Recipe):
    """A whole recipe; `slices`, `modules`, tokenizers that are mixed, gradients over layers and filters of names are no part of it."""

    merge_method: Method
    models: list[Source] = Field(min_length=1)
    base_model: str | None = None
    parameters: OfAll = OfAll()
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    tokenizer_source: Literal["base"] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        names = [source.model for source in self.models]
        if len({*names}) < len(names):
            raise ValueError("a recipe that names each model once")
        if not self.tasks:
            raise ValueError(f"a recipe with a model beside the base, {self.base}")
        if self.base_model is None and self.merge_method != "linear":
            raise ValueError(f"a recipe with a base_model, from which {self.merge_method} measures")
        counted = self.models if self.merge_method == "linear" else self.tasks
        if lacking := [source.model for source in counted if self.of(source, "weight") is None]:
            raise ValueError(f"a recipe with a weight for each model; {lacking[0]} has none")
        if self.merge_method == "linear" and self.parameters.normalize is False:
            raise ValueError("a recipe whose linear merge is an average: normalize is true there")
        return self

    @property
    def base(self) -> str:
        """The model that all others are compared with; of a linear merge it may be any."""
        return self.base_model or self.models[0].model

    @property
    def tasks(self) -> list[Source]:
        """The models that are merged into the base; a base among them has moved nowhere, so that only an average counts it."""
        return [source for source in self.models if source.model != self.base]

    def of(self, source: Source, name: str) -> float | None:
        """A number of a model, or else that of all."""
        own = getattr(source.parameters, name)
        return own if own is not None else getattr(self.parameters, name)

    def settings(self) -> dict[str, Any]:
        """Arguments of `merge`: those that its method reads, as mergekit passes over the others."""
        given, weights = self.parameters, {source.model: self.of(source, "weight") for source in self.tasks}
        density = {source.model: self.of(source, "density") or 1.0 for source in self.tasks}
        alpha = given.lambda_
        if self.merge_method == "linear" and len(weights) < len(self.models):
            rest = next(self.of(source, "weight") for source in self.models if source.model == self.base)
            alpha *= sum(weights.values()) / ((sum(weights.values()) + rest) or 1)
        how = OTHERWISE.get(self.merge_method, self.merge_method)
        settings = {"share": density, "per": "tensor"}
        settings |= {name: getattr(given, name) for name in ("gamma", "epsilon", "rescale", "normalize")}
        read = {name: value for name, value in settings.items() if reads(how, name)}
        return {"how": how, "alpha": alpha, "weights": weights, **read}


def read_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file; raises ParamsError with all that is wrong with it."""
    import yaml

    if path.exists() and not path.is_file():  # a pipe would keep whoever opens it waiting
        raise ParamsError(f"{path}: is no regular file")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path}: no such file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParamsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, Mapping):
        raise ParamsError(f"{path}: should be a mapping with merge_method, base_model and models")
    try:
        return Recipe.model_validate(found)
    except ValidationError as error:
        lines = (plain_problem(problem, "", Recipe).removeprefix(": ") for problem in error.errors())
        raise ParamsError("; ".join(f"{path}: {line}" for line in lines)) from None
