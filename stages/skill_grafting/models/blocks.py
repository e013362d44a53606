"""The repeated blocks of a live model, the group of each of its parameters, told by what runs on a text and in which order, and its heads."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch.nn import Embedding, ModuleList

from ..grafting.region import named_weights, output_of, unwrapped
from ..support.errors import ModelError
from ..support.fields import EMBEDDINGS, HEAD, LAYERS, LM_HEAD, POOLER
from .probing import run_of

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

# what peft puts before the names, and what parts call their heads
WRAPPER = "base_model.model."
HEADS = ("classifier", "classification_head", "score", "head", "heads", "fc", "qa_outputs")


def groups_in(model: "PreTrainedModel", head: Collection[str] = ()) -> dict[str, str]:
    """Name of every parameter of a model with this head -> group, in the model's own order.

    layers: the repeated blocks; pooler: the backbone's pooler; embeddings: of the backbone what runs before the blocks, what
    no text runs (such as the eyes of a model that sees images, too), and all tables of embeddings; lm_head: what runs behind
    the blocks, the vocabulary head, or what a classifier takes over from it; head: as given.  Raises ModelError if the blocks
    can't be told.
    """
    if not getattr(model, "base_model_prefix", ""):
        raise ModelError(f"groups are known of transformers' models, not of this {type(model).__name__}")
    inside, names = f"{model.base_model_prefix}.", [*named_weights(model)]
    if not any(name.startswith(inside) for name in names):  # the backbone itself, or T5, whose parts stand for one
        inside = ""
    pooler, blocks, order = f"{inside}pooler.", _blocks(model), run_of(model).order
    first = next(place for place, name in enumerate(order) if f"{name}.".startswith(blocks))
    tables = {name for name, part in model.named_modules() if isinstance(part, Embedding)}

    def group_of(name: str) -> str:
        known = {HEAD: name in head, LAYERS: name.startswith(blocks), POOLER: name.startswith(pooler)}
        owners = _owners(name, blocks)
        early = name.startswith(inside) and (owners & {*order[:first], *tables} or owners.isdisjoint(order))
        return next((group for group, there in known.items() if there), EMBEDDINGS if early else LM_HEAD)

    return {name: group_of(name) for name in names}


def new_head(model: "PreTrainedModel", lacking: Collection[str]) -> set[str]:
    """The parameters of a new head: what the pretrained checkpoint lacks behind its backbone, a pooler with it.

    Of one that lacks nothing there, and so has a head of its own task, all that is outside the backbone.
    """
    pooler, behind = f"{model.base_model_prefix}.pooler.", outside(model)
    head = {name for name in lacking if name in behind or name.startswith(pooler)}
    return head if head & behind else head | behind


def is_head(name: str) -> bool:
    """True for a parameter of a head, by its name."""
    while name.startswith(WRAPPER):
        name = name.removeprefix(WRAPPER)
    return name.partition(".")[0] in HEADS


def heads_of(model: "Module") -> set[str]:
    """Parameters of heads alone: by their names, and of a classifier of texts of transformers all outside its backbone.

    A live model doesn't say which of these were new, as a folder does by what it lacks.  None is a weight that a head shares with another
    part, nor what computes the logits of a vocabulary, whatever it is called (RWKV's is `head`).
    """
    model = unwrapped(model)
    classifier, output = head_of_classifier(model), output_of(model)
    every = model.named_parameters(remove_duplicate=False)
    shared = {weight for name, weight in every if not (is_head(name) or name in classifier)}
    shared |= set() if output is None else {*output.parameters()}
    return {name for name, weight in named_weights(model).items() if weight not in shared}


def head_of_classifier(model: "Module") -> set[str]:
    """The parameters outside the backbone of a classifier of texts of transformers; none of any other module."""
    kinds = {kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers.")}
    if not kinds:
        return set()
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    return set() if kinds.isdisjoint(CLASSIFIERS.values()) else outside(model)


def outside(model: "PreTrainedModel") -> set[str]:
    """Parameters outside the backbone."""
    inside = f"{model.base_model_prefix}."
    return {name for name in named_weights(model) if not name.startswith(inside)}


def block_names(model: "PreTrainedModel") -> list[str]:
    """Names of the repeated blocks, in the model's order; ALBERT has one for each group of layers that it runs several times."""
    return [f"{prefix}{place}" for prefix in _blocks(model) for place in range(len(model.get_submodule(prefix[:-1])))]


def _blocks(model: "PreTrainedModel") -> tuple[str, ...]:
    """Prefixes of the lists of repeated blocks: that with the most parameters, and those of its length beside it or of its kind.

    XLM has four side by side, HRM two of the same kind.  Only lists that a text runs count, that are in no other list, and
    that aren't of tables.
    """
    ran = run_of(model).order
    lists = {
        f"{name}.": part
        for name, part in model.named_modules()
        if isinstance(part, ModuleList)
        and any(one.startswith(f"{name}.") for one in ran)
        and not all(isinstance(block, Embedding) for block in part)
    }
    outer = {
        name: part
        for name, part in lists.items()
        if not any(name != other and name.startswith(other) for other in lists)
    }
    if not outer:
        raise ModelError(f"{type(model).__name__}: no list of layers runs on a text, so there is no region to graft")
    beside: dict[tuple[str, int], list[str]] = {}
    for name, part in outer.items():
        beside.setdefault((name[:-1].rpartition(".")[0], len(part)), []).append(name)
    size = {name: sum(weight.numel() for weight in part.parameters()) for name, part in outer.items()}
    chosen = max(beside.values(), key=lambda names: sum(size[name] for name in names))
    kinds = [[type(block) for block in outer[name]] for name in chosen]
    return tuple(name for name, part in outer.items() if name in chosen or [type(block) for block in part] in kinds)


def _owners(name: str, blocks: tuple[str, ...]) -> set[str]:
    """The module of a parameter and those around it, up to where blocks are inside."""
    parts = name.split(".")[:-1]
    around = [".".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    return {module for module in around if not any(block.startswith(f"{module}.") for block in blocks)}
