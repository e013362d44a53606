"""Patches on live models: a base model loaded with one, and one base model that serves many in turn.

    model = load_graft("models/pretrained", "shared/movies")

    movies, domain = (open_patch(folder, base) for folder in ("shared/movies", "shared/domain"))
    with grafted(base, movies):
        base(**inputs)

The base model is compared with what the patch was made from when a patch is opened, not at each swap, which writes the
patch's values alone.  Swaps are for one thread at a time.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import MaskError, ModelError, ParamsError
from ..grafting import modules
from ..grafting.mask import GraftMask
from ..grafting.places import Places, swapped, unswapped, write
from ..grafting.region import Tensors, named_weights
from ..models.anatomy import CLASSES
from ..models.folders import find_checkpoint
from ..models.loading import load_model
from .patch_file import GraftFile, read_patch, require_head


@dataclass(frozen=True, eq=False)
class OpenPatch:
    """A patch that fits `model`: its values at their places, on the model's device, and what it changes in the config."""

    path: Path
    model: nn.Module
    places: Places
    config: dict[str, Any]


def load_graft(
    base: str | Path, patch: str | Path, revision: str | None = None, dtype: torch.dtype | str = torch.float32
) -> nn.Module:
    """The base model of a folder or the hub with a patch (its folder or file) on it, in eval mode.

    All is checked and put together in float32; `dtype` is what the result is rounded to.  Raises MaskError if the patch is
    damaged or was made for another model, ModelError if the base isn't complete or names code of its own or of the hub, which
    is never run.
    """
    file, dtype = read_patch(Path(patch)), getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype):
        raise MaskError("dtype: should be a dtype of torch or the name of one, such as bfloat16")
    folder, _ = find_checkpoint(str(base), revision, tokenizer=False)
    return put_on(load_base(folder, file)).to(dtype)


def load_base(folder: Path, patch: GraftFile, dtype: torch.dtype = torch.float32) -> OpenPatch:
    """The base model in a folder, of the class that a patch names, in eval mode, and the patch ready to be put on it."""
    from transformers import logging

    verbosity = logging.get_verbosity()
    try:
        model = load_model(
            folder, patch.use.mode, patch.use.labels, new_head=True, dtype=str(dtype).removeprefix("torch.")
        )
    finally:
        logging.set_verbosity(verbosity)  # load_model silences reports of a missing head, which the patch has
    return OpenPatch(patch.path, model, _places(patch, model, f"the model in {folder}"), patch.use.options)


def put_on(opened: OpenPatch) -> nn.Module:
    """The model with its patch on it for good."""
    write(opened.places)
    _set_config(opened.model, opened.config)
    return opened.model


def open_patch(patch: str | Path, model: nn.Module) -> OpenPatch:
    """A patch, given by its folder or file, ready for `grafted` on this model, other patches on it or not.

    The model has to be the base model of the patch, of the class that it names, in float32 or in whatever else holds the
    same numbers; it may be moved or turned into another dtype afterwards, and the values follow.
    Raises MaskError if the patch is damaged or was made for another model.
    """
    file = read_patch(Path(patch))
    places = _places(file, model, f"this {type(model).__name__}")
    for theirs, ours in sorted({(values.dtype, weight.dtype) for weight, _, values in places}, key=str):
        if torch.promote_types(theirs, ours) != ours:
            warnings.warn(f"{file.path}: its values are rounded from {theirs} to the model's {ours}", stacklevel=2)
    return OpenPatch(file.path, model, places, file.use.options)


@contextmanager
def grafted(
    model: nn.Module, graft: OpenPatch | str | Path | nn.Module, mask: GraftMask | None = None
) -> Iterator[nn.Module]:
    """The model with a graft on it inside `with`; afterwards what was swapped is as before, bit for bit, whatever happened.

    The graft is a patch, or a fine-tuned model and a mask.  Swapped are the values inside the mask, a head (for a patch also
    the labels in the config), and of a fine-tuned model the buffers that differ, such as the running statistics of BatchNorm.
    What training inside `with` changes in other parameters stays changed; buffers don't (see `swapped`).
    May be nested: the inner graft lies on the outer one.  Raises MaskError like `open_patch`, which it calls for a path;
    ModelError if the patch was opened for another model, or if the fine-tuned one doesn't fit.
    """
    if mask is None and isinstance(graft, nn.Module):
        raise ParamsError("mask: goes with a fine-tuned model; a patch has its own")
    if mask is not None:
        with modules.grafted(model, graft, mask):
            yield model
        return
    opened = graft if isinstance(graft, OpenPatch) else open_patch(graft, model)
    if opened.model is not model:
        raise ModelError(f"{opened.path}: was opened for another model than this {type(model).__name__}")
    config = {name: getattr(model.config, name, None) for name in opened.config}
    try:
        with swapped(model, opened.places):
            _set_config(model, opened.config)
            yield model
    finally:
        _set_config(model, config)


def _set_config(model: nn.Module, config: dict[str, Any]) -> None:
    for name, value in config.items():
        setattr(model.config, name, value)


def _places(patch: GraftFile, model: nn.Module, title: str) -> Places:
    """The target of each value; raises MaskError unless the model, which messages call by this title, is the base of the patch."""
    if not hasattr(model, "config"):
        raise MaskError(f"{patch.path}: is for a model of transformers ({patch.use.auto_class}), not for {title}")
    weights, new_head = named_weights(model), patch.use.auto_class == CLASSES["standard"]
    # what the base model has no values of, whatever it is a part of
    head = {name: weight for name, weight in weights.items() if new_head and name not in patch.region.shapes}
    known = {name: weight for name, weight in weights.items() if name not in head}
    with unswapped(model):
        _require_base(patch, known, title)
    padding, tokens = patch.use.config["pad_token_id"], getattr(model.config, "vocab_size", None)
    if padding is not None and tokens is not None and padding >= tokens:
        problem = f"patch.config.pad_token_id is {padding}, and the model has {tokens} tokens"
        raise MaskError(f"{patch.path}: damaged: {problem}")
    require_head(patch, {name: tuple(weight.shape) for name, weight in head.items()}, title)
    places: Places = [
        (weights[name], indices.to(weights[name].device), patch.stored.values[name].to(weights[name].device))
        for name, indices in patch.stored.mask.indices.items()
    ]
    return places + [(head[name], None, part) for name, part in patch.stored.head.items()]


def _require_base(patch: GraftFile, known: Tensors, title: str) -> None:
    """Raise MaskError unless these pretrained weights are what a patch was made from."""
    use, wanted = patch.use, patch.region.shapes
    for name, weight in known.items():
        if weight.is_meta or not weight.is_floating_point():
            problem = f"{name} is {weight.dtype} on {weight.device}; only plain floating-point numbers can be swapped"
            raise MaskError(f"{patch.path}: {problem}")
    made_for = f"{patch.path}: was made for {use.base} (fingerprint {use.fingerprint[:12]}), not for {title}"
    there = {name: tuple(weight.shape) for name, weight in known.items()}
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sizes = [list(shapes[name]) if name in shapes else "none" for shapes in (wanted, there)]
        raise MaskError(f"{made_for}: {name} is {sizes[0]} there and {sizes[1]} here")
    if (found := patch.region.fingerprint(known)) != use.fingerprint:
        rounded = {weight.dtype for weight in known.values()} - {torch.float32}
        hint = "; its numbers are rounded: load it in float32, open the patch, then turn it into another dtype"
        raise MaskError(f"{made_for} ({found[:12]}){hint if rounded else ''}")
