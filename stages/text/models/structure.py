"""The groups of a live model's parameters, told by what runs on a text and in which order, never by the model's name."""

from typing import TYPE_CHECKING

from skill_grafting.models.anatomy import ModelSpec, shapes_of
from skill_grafting.models.blocks import groups_in, new_head
from skill_grafting.support.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from stages.text.models.label_model import LabelModel


def anatomy_of(model: "PreTrainedModel", mode: str, name: str, source: str, revision: str | None) -> ModelSpec:
    """Names, groups and shapes of a model (see parameter_groups); raises ModelError if its blocks can't be told."""
    try:
        groups = parameter_groups(model, mode)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    return ModelSpec(name, source, revision, mode, groups, shapes_of(model))


def groups_of(model: "LabelModel") -> dict[str, str]:
    """Name of every parameter of a model -> group (see parameter_groups)."""
    return parameter_groups(model.model, model.mode)


def parameter_groups(model: "PreTrainedModel", mode: str) -> dict[str, str]:
    """Name of every parameter -> group (see `groups_in`); the head is what is new in standard fine-tuning (see `new_head`)."""
    lacking = getattr(model, "missing_tensors", ())
    return groups_in(model, new_head(model, lacking) if mode == "standard" else set())
