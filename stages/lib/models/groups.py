"""Which part of a model each parameter belongs to, told by structure rather than by name patterns."""

from typing import Any

from torch import nn

from stages.lib.errors import ModelError

LAYERS, EMBEDDINGS, POOLER, LM_HEAD, HEAD = "layers", "embeddings", "pooler", "lm_head", "head"


def parameter_groups(model: Any, mode: str) -> dict[str, str]:
    """Name of every parameter -> group, in the model's own order.

    layers: the repeated blocks; embeddings: everything else of the backbone that comes before them;
    pooler: the backbone's pooler; lm_head: final norm and vocabulary head; head: the new classifier
    of standard fine-tuning.  Raises ModelError if the blocks can't be told.
    """
    backbone = model.base_model_prefix + "."
    blocks = _blocks_prefix(model)
    pooler = f"{backbone}pooler."
    outside = HEAD if mode == "standard" else LM_HEAD
    embedding_prefixes = _embedding_prefixes(model, blocks)
    groups = {}
    for name, _ in model.named_parameters():
        if name.startswith(blocks):
            groups[name] = LAYERS
        elif name.startswith(pooler):
            groups[name] = POOLER
        elif name.startswith(embedding_prefixes):
            groups[name] = EMBEDDINGS
        else:
            groups[name] = LM_HEAD if name.startswith(backbone) else outside
    return groups


def _blocks_prefix(model: Any) -> str:
    count = model.config.num_hidden_layers
    found = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not found:
        raise ModelError(f"{type(model).__name__}: no list of {count} layers found, so there is no region to graft")
    return min(found, key=len) + "."


def _embedding_prefixes(model: Any, blocks: str) -> tuple[str, ...]:
    """Modules of the backbone that stand before the blocks: token, position and type embeddings, their norm."""
    before = []
    parent = blocks.rstrip(".").rpartition(".")[0]
    while True:
        stop = blocks[len(parent) + 1 :].split(".")[0] if parent else blocks.split(".")[0]
        for name, _ in model.get_submodule(parent).named_children():
            if name == stop:
                break
            before.append(f"{parent}.{name}." if parent else f"{name}.")
        if "." not in parent:
            return tuple(before)
        parent = parent.rpartition(".")[0]
