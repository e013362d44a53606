"""Names, shapes and groups of a model's parameters, derived from its structure, and anatomy.json, which stores them.

Stages that only do arithmetic on tensors read that file instead of building the model, which would
cost them seconds of start-up.
"""

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..digest import require_listed
from ..errors import ModelError, plain_problem
from ..grafting.region import Region
from ..io import read_json, write_json

if TYPE_CHECKING:
    from torch.nn import Module, Parameter
    from transformers import PreTrainedModel

FILE = "anatomy.json"
LAYERS, EMBEDDINGS, POOLER, LM_HEAD, HEAD = "layers", "embeddings", "pooler", "lm_head", "head"
# labels of the head that a model gets before a task is known, and so of the head in anatomy.json
SOME_LABELS = 2
# the classes of transformers that read labels off a model, by model.mode
CLASSES = {
    "standard": "AutoModelForSequenceClassification",
    "prompt": "AutoModelForMaskedLM",
    "autoregressive": "AutoModelForCausalLM",
    "generative": "AutoModelForCausalLM",
}
# model types whose classifier reuses a pretrained part of their masked-LM head
PREDICTION_HEADS = {"modernbert": "head."}


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

    def head_shapes(self, labels: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a new head for so many labels, by the name of its tensors; none where there is no such head."""
        shapes = {name: self.shapes[name] for name in self.names([HEAD])}
        return {name: (labels if size == SOME_LABELS else size, *rest) for name, (size, *rest) in shapes.items()}

    def names(self, groups: list[str]) -> list[str]:
        """Names of the parameters of some groups, in the model's order."""
        return [name for name, group in self.groups.items() if group in groups]

    def region(self, groups: list[str], setting: str = "graft.region") -> Region:
        """The graftable parameters; raises ModelError, which names the setting, if there are none."""
        names = self.names(groups)
        if not names:
            there = ", ".join(group for group in dict.fromkeys(self.groups.values()) if group != HEAD)
            raise ModelError(f"{setting}: {self.name} has no parameters in {', '.join(groups)}; it has {there}")
        return Region({name: tuple(self.shapes[name]) for name in names})


def anatomy_of(model: "PreTrainedModel", mode: str, name: str, source: str, revision: str | None) -> ModelSpec:
    """Names, groups and shapes of a live model; raises ModelError if its blocks can't be identified."""
    return ModelSpec(name, source, revision, mode, parameter_groups(model, mode), shapes_of(model))


def shapes_of(model: "PreTrainedModel") -> dict[str, list[int]]:
    """Shapes of a model's parameters by name."""
    return {name: list(parameter.shape) for name, parameter in named_weights(model).items()}


def write_anatomy(anatomy: ModelSpec, folder: Path) -> None:
    """Write anatomy.json into a model folder."""
    write_json(folder / FILE, asdict(anatomy))


def read_anatomy(folder: Path) -> ModelSpec:
    """Read anatomy.json of a model folder; raises ModelError if it isn't there or is damaged."""
    # not needed to apply a patch
    from pydantic import TypeAdapter, ValidationError

    require_listed(folder, FILE)
    try:
        return TypeAdapter(ModelSpec).validate_python(read_json(folder / FILE, ModelError))
    except ValidationError as error:
        raise ModelError(
            f"{folder / FILE}: damaged: {plain_problem(error.errors()[0], 'anatomy', ModelSpec)}"
        ) from None


def parameter_groups(model: "PreTrainedModel", mode: str) -> dict[str, str]:
    """Name of every parameter -> group, in the model's own order.

    layers: the repeated blocks; embeddings: everything else of the backbone that comes before them, and other embeddings of
    it, such as those of relative positions; pooler: the backbone's pooler; lm_head: final norm and vocabulary head, or
    what a classifier reuses of it; head: the new classifier of standard fine-tuning.  Raises ModelError if the blocks can't be identified.
    """
    backbone, blocks = model.base_model_prefix + ".", _blocks_prefix(model)
    # the first that fits
    prefixes: list[tuple[str, str | tuple[str, ...]]] = [
        (LAYERS, blocks),
        (POOLER, f"{backbone}pooler."),
        (EMBEDDINGS, _embedding_prefixes(model, blocks)),
        (LM_HEAD, (backbone, PREDICTION_HEADS.get(model.config.model_type, backbone))),
        (HEAD if mode == "standard" else LM_HEAD, ""),
    ]
    return {name: next(group for group, prefix in prefixes if name.startswith(prefix)) for name in named_weights(model)}


def require_embeddings(name: str, model: "PreTrainedModel", tokens: int) -> None:
    """Raise ModelError unless a model has an embedding for each of its tokenizer's tokens."""
    if tokens > (words := len(model.get_input_embeddings().weight)):
        raise ModelError(f"{name}: its tokenizer has {tokens} tokens, but the model only {words}")


def most_tokens(model: "PreTrainedModel") -> int | None:
    """Tokens of the longest input that a model has learned positions for; None where it learned none, as with rotary ones."""
    from torch.nn import Embedding

    own_names = ((name.rpartition(".")[2], part) for name, part in model.named_modules() if isinstance(part, Embedding))
    learned = [part for name, part in own_names if "position" in name or name == "wpe"]
    if not learned:
        return None
    padding = learned[0].padding_idx  # RoBERTa and its kin count from behind it
    return model.config.max_position_embeddings - (0 if padding is None else padding + 1)


def _blocks_prefix(model: "PreTrainedModel") -> str:
    from torch.nn import ModuleList  # reading the file needs no torch

    counts = block_counts(model)
    lists = [name for name, part in model.named_modules() if isinstance(part, ModuleList) and len(part) in counts]
    if not lists:
        raise ModelError(f"{type(model).__name__}: no list of {counts[0]} layers found, so there is no region to graft")
    return min(lists, key=len) + "."


def block_counts(model: "PreTrainedModel") -> tuple[int | None, int | None]:
    """How many blocks a model may have: its layers, or, as ALBERT, the groups of layers that it runs several times."""
    layers, groups = (getattr(model.config, name, None) for name in ("num_hidden_layers", "num_hidden_groups"))
    return layers, groups


def _embedding_prefixes(model: "PreTrainedModel", blocks: str) -> tuple[str, ...]:
    """Modules of the backbone that stand before the blocks, token, position and type embeddings, their norm, or are embeddings."""
    from torch.nn import Embedding

    inside = model.base_model.named_modules(prefix=model.base_model_prefix)
    before = [f"{name}." for name, part in inside if isinstance(part, Embedding)]
    path = blocks.rstrip(".").split(".")
    for depth in range(min(1, len(path) - 1), len(path)):
        parent = ".".join(path[:depth])
        children = [name for name, _ in model.get_submodule(parent).named_children()]
        before += [f"{parent}.{name}.".removeprefix(".") for name in children[: children.index(path[depth])]]
    return tuple(before)


def named_weights(model: "Module") -> dict[str, "Parameter"]:
    """Every parameter of a model by the name that `save_pretrained` writes it under: where two parts share one, that in the backbone.

    torch takes the first part's name, and XLM-RoBERTa has its vocabulary head before the embeddings.
    """
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    names: dict[Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight not in names or (name.startswith(inside) and not names[weight].startswith(inside)):
            names[weight] = name
    return {name: weight for weight, name in names.items()}
