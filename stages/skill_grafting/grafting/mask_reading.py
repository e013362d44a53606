"""Reading of mask files (see mask_file.py)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import MaskError
from .fingerprint import fingerprint
from .mask import FLOATS, WHOLE, GraftMask
from .mask_file import StoredMask
from .mask_indices import open_mask, read_header, read_indices, require_indices
from .region import Region, Tensors


def load_mask(path: str | Path) -> GraftMask:
    """Read the mask in a file of `GraftMask.save`, of the pipeline or of a patch; raises MaskError if it is missing or damaged."""
    region, indices = read_indices(Path(path))
    mask = GraftMask.from_region_indices(region, torch.from_numpy(indices))
    return replace(mask, record=read_header(Path(path)).get("found") or {})


def read_mask(path: Path) -> StoredMask:
    """Read a mask file; raises MaskError if it is missing, damaged or of another format."""
    with open_mask(path, "pt") as (about, file):
        parts: dict[str, dict[str, Tensor]] = {"indices": {}, "values": {}, "head": {}}
        for key in file.keys():  # noqa: SIM118 - not a dict
            part, _, name = key.partition("/")
            parts[part][name] = file.get_tensor(key)
        for name, indices in parts["indices"].items():
            require_indices(name, "i" if indices.dtype in (torch.int32, torch.int64) else "", indices.dim())
        region = Region({name: tuple(shape) for name, shape in about["shapes"].items()})
        ordered = {name: parts["indices"][name].to(torch.int64) for name in region.shapes if name in parts["indices"]}
        mask = _mask(path, region, ordered, about.get("found") or {})
        if mask.indices and not parts["values"]:
            raise MaskError(
                f"{path}: a mask without fine-tuned values, which this needs; skill_grafting.load_mask reads it"
            )
        _check(mask, parts, about)
    return StoredMask(mask, parts["values"], parts["head"], about)


def _mask(path: Path, region: Region, indices: dict[str, Tensor], record: dict[str, Any]) -> GraftMask:
    try:
        return GraftMask(region, indices, record)
    except MaskError as error:
        raise MaskError(f"{path}: damaged: {error}") from None


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


def _check(mask: GraftMask, parts: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
    if {*parts["values"]} != {*mask.indices} or {*parts["indices"]} != {*mask.indices}:
        raise ValueError("indices and values don't name the same tensors")
    for name, indices in mask.indices.items():
        if parts["values"][name].shape != indices.shape:
            raise ValueError(
                f"{name} has {len(indices)} indices and values of the shape {[*parts['values'][name].shape]}"
            )
    floats = [*parts["values"].items(), *parts["head"].items()]
    for name, values in parts["values"].items():
        if values.dtype not in FLOATS:
            raise ValueError(f"{name} holds {values.dtype}, not float32, bfloat16 or float16")
    for name, values in parts["head"].items():
        if values.dtype not in WHOLE:
            raise ValueError(f"{name} holds {values.dtype}, not float32, bfloat16, float16 or whole numbers")
    if not all(bool(values.isfinite().all()) for _, values in floats):
        raise ValueError("holds values that are not numbers")
    if mask.selected != about["selected"]:
        raise ValueError(f"selects {mask.selected} parameters, its header says {about['selected']}")
