"""A patch as it lies on disk, read with torch and safetensors alone; what its header may say."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..digest import require_sealed
from ..errors import MaskError
from ..grafting.mask import FLOATS, GraftMask
from ..grafting.region import Region
from ..models.anatomy import CLASSES
from .locations import COMMAND, mask_at

VERSION = 3
KEY = "patch"
# what mask files say they are: `stages.lib.grafting.mask_indices`, which takes packages that are not needed here
MASKS = {"format": "graft-mask", "version": 2}
EXPORT = f"`{COMMAND} export MASK --as patch --to FOLDER`"


@dataclass(frozen=True)
class Patch:
    """The contents of a patch: of the parameters of `mask` the fine-tuned `values`, and a new `head`, whole.

    `use` is what the header says of the model and the task (`build_patch.Use`): `base`, the name of the base model, and its
    `fingerprint`; `auto_class`, the class of transformers that loads it; `config`, what is otherwise than in the base model's;
    `task` and so on.  Of these `auto_class` and `config` are checked.
    `whole` has the shapes of all pretrained parameters in the order of the fingerprint.
    """

    path: Path
    use: dict[str, Any]
    whole: Region
    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]


def read_patch_file(path: Path) -> Patch:
    """Read a patch, given by its folder or its file; raises MaskError if it is missing, damaged or of another version."""
    file = mask_at(path)
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get("graft", "null"))
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - not a dict
        _require_version(file, about)
        require_sealed(file)
        return _patch(file, about, tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MaskError(f"{file}: damaged: {'lacks ' * isinstance(error, KeyError)}{error}") from error


def _require_version(file: Path, about: object) -> None:
    if not isinstance(about, dict) or about.get("format") != MASKS["format"]:
        raise MaskError(f"{file}: not a mask file")
    if not isinstance(about.get(KEY), dict):
        raise MaskError(f"{file}: is a mask, not a patch; {EXPORT} makes one of it")
    if about.get("version") != MASKS["version"] or about[KEY].get("version") != VERSION:
        found = f"{about[KEY].get('version')} of a patch in version {about.get('version')} of a mask file"
        raise MaskError(f"{file}: format version {found}, this program reads {VERSION} in {MASKS['version']}")


def _patch(file: Path, about: dict[str, Any], tensors: dict[str, Tensor]) -> Patch:
    use, parts = about[KEY], {part: {} for part in ("indices", "values", "head")}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = tensor
        if part == "indices" and (tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != 1):
            raise ValueError(f"{name}: indices must be one row of whole numbers")
        if part != "indices" and (tensor.dtype not in FLOATS or not bool(tensor.isfinite().all())):
            raise ValueError(f"{name} is {tensor.dtype}, or holds what is no number")
    shapes, outside = ({name: tuple(shape) for name, shape in of.items()} for of in (about["shapes"], use["outside"]))
    if use["auto_class"] not in CLASSES.values():
        raise ValueError(
            f"{KEY}.auto_class is {use['auto_class']!r}, should be one of {', '.join(dict.fromkeys(CLASSES.values()))}"
        )
    if use["config"] != names_of_labels(use["labels"], use["auto_class"]) | padding_of(use["config"]):
        raise ValueError(f"{KEY}.config may say how to pad and, for a new head, the names of its labels, nothing else")
    mask = GraftMask(Region(shapes), {name: indices.to(torch.int64) for name, indices in parts["indices"].items()})
    if mask.counts != {name: values.numel() for name, values in parts["values"].items() if values.dim() == 1}:
        raise ValueError("indices and values don't belong together")
    if not all(isinstance(use[name], str) for name in ("base", "fingerprint", "task")):
        raise ValueError(f"{KEY}.base, fingerprint and task should be text")
    return Patch(file, use, Region({**outside, **shapes}), mask, parts["values"], parts["head"])


def names_of_labels(labels: list[str], auto_class: str) -> dict[str, Any]:
    """The labels of a new head by a config, in the order of its logits."""
    if auto_class != CLASSES["standard"]:
        return {}
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def padding_of(config: dict[str, Any]) -> dict[str, Any]:
    """The padding by a config, if that can be so."""
    token = config.get("pad_token_id")
    return {"pad_token_id": token} if token is None or (type(token) is int and token >= 0) else {}
