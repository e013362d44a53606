"""The groups of a live model's parameters, told by what runs on a text and in which order, never by the model's name."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..errors import ModelError
from ..grafting.region import named_weights
from .anatomy import ModelSpec, shapes_of
from .blocks import groups_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .label_model import LabelModel


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
    """Name of every parameter -> group, in the model's own order.

    layers: the repeated blocks; pooler: the backbone's pooler; embeddings: of the backbone what runs before the blocks, what
    no text runs (such as the eyes of a model that sees images, too), and all tables of embeddings; lm_head: what runs behind
    the blocks, the vocabulary head, or what a classifier takes over from it; head: new in standard fine-tuning, so that it
    has no pretrained values (see new_head).  Raises ModelError if the blocks can't be told.
    """
    lacking = getattr(model, "missing_tensors", ())
    return groups_in(model, new_head(model, lacking) if mode == "standard" else set())


def new_head(model: "PreTrainedModel", lacking: Collection[str]) -> set[str]:
    """The parameters of a new head: what the pretrained checkpoint lacks behind its backbone, a pooler with it.

    Of one that lacks nothing there, and so has a head of its own task, all that is outside the backbone.
    """
    inside, names = f"{model.base_model_prefix}.", [*named_weights(model)]
    pooler = f"{inside}pooler."
    outside = {name for name in names if not name.startswith(inside)}
    head = {name for name in lacking if name in outside or name.startswith(pooler)}
    return head if head & outside else head | outside
