"""A patch on a model: whether it is the one that the patch was made from, where the values go, and how its config changes."""

import warnings
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoints.comparing import listed
from ..checkpoints.files import Checkpoint, Named, require_as_stored
from ..checkpoints.folders import find_checkpoint
from ..grafting.apply import put_at, write
from ..grafting.differences import holds
from ..grafting.fingerprint import differing, fingerprint
from ..grafting.region import LazyTensors, Tensors, named_weights
from ..models.loading import load_model
from ..modules.heads import put_settings
from ..modules.targets import Changes, require_plain, tensors_in, writes_in
from ..support.errors import MaskError
from .patch_file import PatchContent, PatchMetadata


def put_on(patch: PatchContent, model: nn.Module, title: str) -> nn.Module:
    """The model, which messages call by this title, with the patch on it for good; MaskError unless it is what the patch was made from."""
    require_fitting(patch, model, title)
    write(writes_in(model, changes_of(patch)))
    put_settings(model, patch.use.config)
    return model


def load_base(patch: PatchContent, base: str | Path, revision: str | None = None) -> nn.Module:
    """The base of a folder or hub id, in float32 and eval mode, with a head of the patch's size, and without the patch."""
    if patch.use.model_class is None:
        raise MaskError(f"{patch!r}: is for no model of transformers; make the base module and apply the patch to it")
    folder, _ = find_checkpoint(str(base), revision, tokenizer=False)
    return load_model(folder, patch.use.model_class, patch.use.labels if patch.head else None, new_head=True)


def require_fitting(patch: PatchContent, model: nn.Module, title: str) -> None:
    """Raise MaskError unless the model, which messages call by this title, is the patch's base."""
    weights = tensors_in(model)
    parameters = {name: weight for name, weight in named_weights(model).items() if name not in patch.head}
    for name, weight in parameters.items():
        require_plain(name, weight)
    try:
        require_base(patch, parameters, title)
    except MaskError:
        require_as_stored(model)  # a better reason
        raise
    if strange := [name for name in patch.head if name not in weights]:
        raise MaskError(f"{patch!r}: its head has {strange[0]}, and {title} has not")
    require_padding(patch.use, getattr(getattr(model, "config", None), "vocab_size", None))
    for theirs, ours in sorted({(part.dtype, weights[name].dtype) for name, part in patch.values.items()}, key=str):
        if torch.promote_types(theirs, ours) != ours:
            warnings.warn(f"{patch!r}: its values are rounded from {theirs} to the model's {ours}", stacklevel=3)


def changes_of(patch: PatchContent) -> Changes:
    """What a patch changes."""
    changes: Changes = [(name, at, patch.values[name]) for name, at in patch.mask.indices.items()]
    return changes + [(name, None, part) for name, part in patch.head.items()]


def patched_tensors(patch: PatchContent, checkpoint: Checkpoint) -> dict[str, Tensor] | None:
    """The tensors of a checkpoint with a patch on them, by the names of the patch's class, in the widest type of both.

    None where the class has other names in memory than in files, as ViT has, or tables that it makes itself (Marian).
    """
    wanted = patch.region.shapes
    first = next(iter(wanted)).partition(".")[0]
    named = Named.of(checkpoint, wanted, first)
    if len(named.stored) < len(wanted):
        return None
    require_base(patch, LazyTensors(named.stored, named.read), f"the model in {checkpoint.title}")
    parts = {name.rpartition(".")[0] for name in wanted}
    # such as the statistics of a BatchNorm: what lies beside a parameter in the module that it is of
    left = {name: name for name in checkpoint.files.keys() - {*named.stored.values()}}
    beside = {name if name.rpartition(".")[0] in parts else f"{first}.{name}": name for name in left}
    buffers = {name: checkpoint.read(stored) for name, stored in beside.items() if name.rpartition(".")[0] in parts}
    tensors = {name: named.read(name) for name in wanted} | buffers | patch.head
    kinds = [values.dtype for values in (*tensors.values(), *patch.values.values()) if values.is_floating_point()]
    widest = reduce(torch.promote_types, kinds)
    tensors = {name: values.to(widest) if values.is_floating_point() else values for name, values in tensors.items()}
    for name, at in patch.mask.indices.items():
        tensors[name] = tensors[name].clone()
        put_at(tensors[name], at, patch.values[name])
    return {name: values.contiguous() for name, values in tensors.items()}


def require_base(patch: PatchContent, known: Tensors, title: str) -> None:
    """Raise MaskError unless these weights are what a patch was made from."""
    use, wanted = patch.use, patch.region.shapes
    for name, weight in known.items():
        if weight.is_meta or not (weight.is_floating_point() or use.makes):
            raise MaskError(
                f"{name} is {weight.dtype} on {weight.device}; only plain floating-point numbers can be swapped"
            )
    made_for = f"the patch was made for {use.base} (fingerprint {use.fingerprint[:12]}), not for {title}"
    there = {name: tuple(weight.shape) for name, weight in known.items()}
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sizes = [[*shapes[name]] if name in shapes else "none" for shapes in (wanted, there)]
        raise MaskError(f"{made_for}: {name} is {sizes[0]} there and {sizes[1]} here")
    if (found := fingerprint(patch.region, known)) != use.fingerprint:
        raise MaskError(f"{made_for} ({found[:12]}): {_why_another(patch, known)}")


def _why_another(patch: PatchContent, known: Tensors) -> str:
    """How a model of the right shapes is not the one that a patch was made from."""
    kinds = {(part.dtype, known[name].dtype) for name, part in patch.values.items() if name in known}
    if any(ours != theirs and holds(theirs, ours) for theirs, ours in kinds):
        return "its numbers are rounded: load it in float32, put the patch on, then turn it into another dtype"
    names = differing(patch.use.fingerprint, patch.region, known)
    others = (
        f"; {len(names)} of its {len(known)} tensors differ{'s' * (len(names) == 1)} ({listed(names)})" if names else ""
    )
    return f"it was made for another state{others}"


def require_padding(use: PatchMetadata, tokens: int | None) -> None:
    """Raise MaskError if the model that a patch is for has fewer tokens than the number of its padding."""
    padding = use.config.get("pad_token_id")
    if padding is not None and tokens is not None and padding >= tokens:
        raise MaskError(f"damaged: patch.config.pad_token_id is {padding}, and the model has {tokens} tokens")
