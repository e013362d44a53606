"""The fit of a patch to a live model, and the places in it where its values go."""

import torch
from torch import nn

from ..errors import MaskError
from ..graft.running_selection import LazyTensors
from ..models.classes import CLASSES, named_weights
from .patch_file import Patch
from .swap import Places, bare


def fit(patch: Patch, model: nn.Module) -> Places:
    """The target of each value; raises MaskError unless this is the base model of the patch, of its class."""
    weights = named_weights(model)
    head = _head(patch, model, weights)
    _require_base(patch, model, {name: weight for name, weight in weights.items() if name not in head})
    padding, words = patch.use["config"].get("pad_token_id"), getattr(model.config, "vocab_size", None)
    if padding is not None and words is not None and padding >= words:
        raise MaskError(f"{patch.path}: damaged: pad_token_id is {padding}, and the model has {words} tokens")
    places: Places = [
        (weights[name], indices.to(weights[name].device), patch.values[name].to(weights[name].device))
        for name, indices in patch.mask.indices.items()
    ]
    return places + [(head[name], slice(None), values.view(-1)) for name, values in patch.head.items()]


def _head(patch: Patch, model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The parameters of a new head; raises MaskError unless the patch has one of their shapes."""
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    standard = patch.use["auto_class"] == CLASSES["standard"]
    head = {name: weight for name, weight in weights.items() if standard and not name.startswith(inside)}
    sizes = [{name: list(part.shape) for name, part in parts.items()} for parts in (patch.head, head)]
    if sizes[0] != sizes[1]:
        theirs, ours = (", ".join(f"{name} {shape}" for name, shape in part.items()) or "none" for part in sizes)
        raise MaskError(
            f"{patch.path}: its head is {theirs}, and that of this {type(model).__name__} is {ours}; "
            f"it was made for {patch.use['auto_class']}"
            + (f" with num_labels={len(labels)}" if (labels := patch.use["config"].get("id2label")) else "")
        )
    return head


def _require_base(patch: Patch, model: nn.Module, weights: dict[str, nn.Parameter]) -> None:
    """Raise MaskError unless these are, without patches that are on them, the parameters that the patch was made from."""
    made_for = f"{patch.path}: was made for {patch.use['base']} (fingerprint {patch.use['fingerprint'][:12]})"
    there, wanted = {name: tuple(weight.shape) for name, weight in weights.items()}, patch.whole.shapes
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sizes = [list(shapes[name]) if name in shapes else "none" for shapes in (wanted, there)]
        raise MaskError(
            f"{made_for} as {patch.use['auto_class']}, not for this {type(model).__name__}: {name} is {sizes[0]} there and {sizes[1]} here"
        )
    for name, weight in weights.items():
        if weight.is_meta or not weight.is_floating_point() or not weight.is_contiguous():
            raise MaskError(
                f"{patch.path}: {name} is {weight.dtype} on {weight.device}; only plain floating-point numbers can be swapped"
            )
    with bare(model):
        found = patch.whole.fingerprint(LazyTensors(weights, lambda name: weights[name].detach().float()))
    if found != patch.use["fingerprint"]:
        kinds = {weight.dtype for weight in weights.values()} - {torch.float32}
        hint = "; its numbers are rounded: load it in float32, open the patch, then turn it into another dtype"
        raise MaskError(f"{made_for}, not for this {type(model).__name__} ({found[:12]}){hint * bool(kinds)}")
