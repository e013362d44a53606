"""Patches on live models: a base model loaded with one, and one base model that serves many in turn.

    model = load_graft("models/pretrained", "shared/movies")

    movies, domain = (open_patch(folder, base) for folder in ("shared/movies", "shared/domain"))
    with grafted(base, movies):
        base(**inputs)

The base model is compared with what the patch was made from when a patch is opened, not at each swap, which writes the
patch's values alone.  Swaps are for one thread at a time.  Needs torch, transformers and safetensors.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import MaskError, ModelError
from .fit import fit
from .patch_file import Patch, read_patch_file
from .swap import ON, Places, read, write


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
    options = {"use_safetensors": True, **options, **_config(file), "dtype": torch.float32}
    said = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it would tell of a head that is missing, which the patch has
    try:
        model = getattr(transformers, file.use["auto_class"]).from_pretrained(base, **options)
    except AssertionError as error:  # a padding token that the model doesn't have
        raise MaskError(f"{file.path}: damaged: {base} can't be loaded with {_config(file)}: {error}") from error
    finally:
        transformers.logging.set_verbosity(said)
    write(fit(file, model))
    return model.eval().to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


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
def grafted(model: nn.Module, patch: OpenPatch | str | Path) -> Iterator[nn.Module]:
    """The model with a patch on it inside `with`; afterwards every bit is as before, whatever happened.

    Only the patch's own values, a new head and what the config says of its labels are swapped.  May be nested: the inner
    patch lies on the outer one.  Raises MaskError like `open_patch`, which it calls for a path; ModelError if the patch
    was opened for another model.
    """
    opened = patch if isinstance(patch, OpenPatch) else open_patch(patch, model)
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
    config = dict(patch.use["config"])
    if "id2label" in config:
        config["id2label"] = {int(number): label for number, label in config["id2label"].items()}
    return config
