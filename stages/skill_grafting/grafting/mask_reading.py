"""Reading of mask files (see mask.py)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..support.errors import MaskError
from .fingerprint import fingerprint
from .mask import FLOATS, WHOLE, GraftMask, StoredMask
from .mask_header import open_mask
from .region import Region, Tensors


def load_mask(path: str | Path) -> GraftMask:
    """Read the mask in a file of `GraftMask.save`, of the pipeline or of a patch; raises MaskError if it is missing or damaged."""
    with open_mask(Path(path), "pt") as (about, file):
        names = [key for key in file.keys() if key.startswith("indices/")]  # noqa: SIM118 - not a dict
        return _mask(Path(path), about, {key.removeprefix("indices/"): file.get_tensor(key) for key in names})


def read_mask(path: Path) -> StoredMask:
    """Read a mask file; raises MaskError if it is missing, damaged or of another format."""
    with open_mask(path, "pt") as (about, file):
        parts: dict[str, dict[str, Tensor]] = {"indices": {}, "values": {}, "head": {}}
        for key in file.keys():  # noqa: SIM118 - not a dict
            part, _, name = key.partition("/")
            parts[part][name] = file.get_tensor(key)
        mask, values = _mask(path, about, parts["indices"]), parts["values"]
        if mask.indices and not values:
            raise MaskError(
                f"{path}: a mask without fine-tuned values, which this needs; skill_grafting.load_mask reads it"
            )
        if not {*values} == {*parts["indices"]} == {*mask.indices}:
            raise ValueError("indices and values don't name the same tensors")
        for name, indices in mask.indices.items():
            if values[name].shape != indices.shape:
                raise ValueError(f"{name} has {len(indices)} indices and values of the shape {[*values[name].shape]}")
        require_held(values, parts["head"])
        if mask.selected != about["selected"]:
            raise ValueError(f"selects {mask.selected} parameters, its header says {about['selected']}")
    return StoredMask(mask, values, parts["head"], about)


def _mask(path: Path, about: dict[str, Any], indices: dict[str, Tensor]) -> GraftMask:
    for name, row in indices.items():
        if row.dtype not in (torch.int32, torch.int64) or row.dim() != 1:
            raise ValueError(f"{name}: indices must be one row of whole numbers")
    region = Region({name: tuple(shape) for name, shape in about["shapes"].items()})
    ordered = {name: indices[name].to(torch.int64) for name in region.shapes if name in indices}
    try:
        return GraftMask(region, ordered, about.get("found") or {})
    except MaskError as error:
        raise MaskError(f"{path}: damaged: {error}") from None


def require_held(values: Tensors, head: Tensors) -> None:
    """Raise ValueError unless selected values, and what travels whole, are finite numbers of types that a file holds."""
    for parts, kinds in ((values, FLOATS), (head, WHOLE)):
        for name, part in parts.items():
            if part.dtype not in kinds:
                held = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
                raise ValueError(f"{name} is {part.dtype}, and held are {held}")
            if not bool(part.isfinite().all()):
                raise ValueError(f"{name} has values that are infinite or no numbers")


def require_model(path: Path, about: dict[str, Any], region: Region, known: str, name: str) -> None:
    """Raise MaskError unless the file was made for exactly this pretrained model and region."""
    theirs = {name_: tuple(shape) for name_, shape in about.get("shapes", region.shapes).items()}
    if theirs != region.shapes or about.get("fingerprint") != known:
        made_for = f"{about.get('model')} (fingerprint {str(about.get('fingerprint'))[:12]})"
        raise MaskError(f"{path}: was made for {made_for}, not for {name} ({known[:12]})")


def read_mask_for(path: Path, pretrained: Tensors, model: str) -> StoredMask:
    """`read_mask`, for the region of these pretrained values of the model of this name alone (see `require_model`)."""
    stored, region = read_mask(path), Region({name: tuple(values.shape) for name, values in pretrained.items()})
    require_model(path, stored.about, region, fingerprint(region, pretrained), model)
    return stored
