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
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..errors import MaskError, ModelError
from ..grafting.mask import GraftMask
from ..grafting.modules import Places, places_of, read, write
from ..grafting.select import LazyTensors
from ..models.anatomy import CLASSES, named_weights
from .patch_file import Patch, read_patch_file

# what is to be put back into a model, for each patch that is on it, the latest last
ON: WeakKeyDictionary[nn.Module, list[Places]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class OpenPatch:
    """A patch that fits `model`: its values at their places, on the model's device, and what it changes in the config."""

    path: Path
    model: nn.Module
    places: Places
    config: dict[str, Any]


def load_graft(base: str | Path, patch: str | Path, **options: Any) -> nn.Module:
    """The base model of a folder or the hub with a patch (its folder or file) on it, in eval mode.

    `options` are those of transformers' `from_pretrained`.  All is checked and put together in float32; a `dtype` is what
    the result is turned into.  Raises MaskError if the patch is damaged or was made for another model.
    """
    import transformers

    file, dtype = read_patch_file(Path(patch)), options.pop("dtype", torch.float32)
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype):
        raise MaskError("dtype: should be a dtype of torch or the name of one, such as bfloat16")
    options = {"use_safetensors": True, **options, **_config(file), "dtype": torch.float32}
    said = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it would tell of a head that is missing, which the patch has
    try:
        model = getattr(transformers, file.use.auto_class).from_pretrained(base, **options)
    except AssertionError as error:  # a padding token that the model doesn't have
        raise MaskError(f"{file.path}: damaged: {base} can't be loaded with {_config(file)}: {error}") from error
    finally:
        transformers.logging.set_verbosity(said)
    write(fit(file, model))
    return model.eval().to(dtype)


def open_patch(patch: str | Path, model: nn.Module) -> OpenPatch:
    """A patch, given by its folder or file, ready for `grafted` on this model, other patches on it or not.

    The model has to be the base model of the patch, of the class that it names, in float32 or in whatever else holds the
    same numbers; it may be moved or turned into another dtype afterwards, and the values follow.
    Raises MaskError if the patch is damaged or was made for another model.
    """
    file = read_patch_file(Path(patch))
    places = fit(file, model)
    kinds = {(values.dtype, weight.dtype) for weight, _, values in places}
    for theirs, ours in sorted(kinds, key=str):
        if torch.promote_types(theirs, ours) != ours:
            warnings.warn(f"{file.path}: its values are rounded from {theirs} to the model's {ours}", stacklevel=2)
    return OpenPatch(file.path, model, places, _config(file))


@contextmanager
def grafted(
    model: nn.Module, graft: OpenPatch | str | Path | nn.Module, mask: GraftMask | None = None
) -> Iterator[nn.Module]:
    """The model with a graft on it inside `with`; afterwards every bit is as before, whatever happened.

    The graft is a patch, or a fine-tuned model and a mask.  Swapped are the values inside the mask, a head (of a patch what the
    config says of its labels, too), and of a fine-tuned model the buffers that differ, such as the running statistics of
    BatchNorm.  May be nested: the inner graft lies on the outer one.  Raises MaskError like `open_patch`, which it calls for a
    path; ModelError if the patch was opened for another model, or if the fine-tuned one doesn't fit.
    """
    if mask is not None:
        opened = OpenPatch(Path("mask"), model, places_of(model, graft, mask), {})
    else:
        opened = graft if isinstance(graft, OpenPatch) else open_patch(graft, model)
    if opened.model is not model:
        raise ModelError(f"{opened.path}: was opened for another model than this {type(model).__name__}")
    before, config = read(opened.places), {name: getattr(model.config, name, None) for name in opened.config}
    on = ON.setdefault(model, [])
    on.append(before)
    try:
        write(opened.places)
        _tell(model, opened.config)
        yield model
    finally:
        write(before)
        _tell(model, config)
        if on.pop() is not before:
            raise RuntimeError("patches left a model in another order than `with` nests them: load it anew")


def _tell(model: nn.Module, config: dict[str, Any]) -> None:
    for name, value in config.items():
        setattr(model.config, name, value)


def _config(patch: Patch) -> dict[str, Any]:
    """The patch's labels for the config, as transformers keeps them: by whole numbers."""
    config = dict(patch.use.config)
    if "id2label" in config:
        config["id2label"] = {int(number): label for number, label in config["id2label"].items()}
    return config


def fit(patch: Patch, model: nn.Module) -> Places:
    """The target of each value; raises MaskError unless this is the base model of the patch, of its class."""
    weights = named_weights(model)
    head = _head(patch, model, weights)
    _require_base(patch, model, {name: weight for name, weight in weights.items() if name not in head})
    padding, words = patch.use.config.get("pad_token_id"), getattr(model.config, "vocab_size", None)
    if padding is not None and words is not None and padding >= words:
        raise MaskError(f"{patch.path}: damaged: pad_token_id is {padding}, and the model has {words} tokens")
    places: Places = [
        (weights[name], indices.to(weights[name].device), patch.stored.values[name].to(weights[name].device))
        for name, indices in patch.stored.mask.indices.items()
    ]
    return places + [(head[name], None, values) for name, values in patch.stored.head.items()]


def _head(patch: Patch, model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The parameters of a new head; raises MaskError unless the patch has one of their shapes."""
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    standard = patch.use.auto_class == CLASSES["standard"]
    head = {name: weight for name, weight in weights.items() if standard and not name.startswith(inside)}
    sizes = [{name: list(part.shape) for name, part in parts.items()} for parts in (patch.stored.head, head)]
    if sizes[0] != sizes[1]:
        theirs, ours = (", ".join(f"{name} {shape}" for name, shape in part.items()) or "none" for part in sizes)
        raise MaskError(
            f"{patch.path}: its head is {theirs}, and that of this {type(model).__name__} is {ours}; "
            f"it was made for {patch.use.auto_class}"
            + (f" with num_labels={len(labels)}" if (labels := patch.use.config.get("id2label")) else "")
        )
    return head


def _require_base(patch: Patch, model: nn.Module, weights: dict[str, nn.Parameter]) -> None:
    """Raise MaskError unless these are, without patches that are on them, the parameters that the patch was made from."""
    made_for = f"{patch.path}: was made for {patch.use.base} (fingerprint {patch.use.fingerprint[:12]})"
    there, wanted = {name: tuple(weight.shape) for name, weight in weights.items()}, patch.whole.shapes
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sizes = [list(shapes[name]) if name in shapes else "none" for shapes in (wanted, there)]
        raise MaskError(
            f"{made_for} as {patch.use.auto_class}, not for this {type(model).__name__}: {name} is {sizes[0]} there and {sizes[1]} here"
        )
    for name, weight in weights.items():
        if weight.is_meta or not weight.is_floating_point():
            raise MaskError(
                f"{patch.path}: {name} is {weight.dtype} on {weight.device}; only plain floating-point numbers can be swapped"
            )
    with bare(model):
        found = patch.whole.fingerprint(LazyTensors(weights, lambda name: weights[name].detach().float()))
    if found != patch.use.fingerprint:
        kinds = {weight.dtype for weight in weights.values()} - {torch.float32}
        hint = "; its numbers are rounded: load it in float32, open the patch, then turn it into another dtype"
        raise MaskError(f"{made_for}, not for this {type(model).__name__} ({found[:12]}){hint * bool(kinds)}")


@contextmanager
def bare(model: nn.Module) -> Iterator[None]:
    """The model without the patches that are on it."""
    taken_off: list[Places] = []
    try:
        for before in reversed(ON.get(model, [])):
            taken_off.append(read(before))
            write(before)
        yield
    finally:
        for places in reversed(taken_off):
            write(places)
