"""Mask files: what is in one, how it is written, and the checks that everyone who reads one gets.

A mask file is enough to rebuild a graft from the pretrained model.  It is one safetensors file with, for each tensor that has a
selected parameter, `indices/<name>` (flat indices, int32, or int64 in tensors of 2^31 and more) and `values/<name>` (the fine-tuned
values there), and `head/<name>` for what travels whole, which has no pretrained values to be grafted onto.  A compact file has streams
in the place of indices and values (packing.py).  Its header `graft`, a text
of JSON, begins with the SHA-256 of the file (computed with zeros in its place), and names the region, both denominators, and what its
maker says: the model with its fingerprint, the task, the seed, how the mask was found.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, BinaryIO

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..support.errors import MaskError, plain_problem
from ..support.writing import replacing
from .fingerprint import fingerprint
from .mask import GraftMask
from .packing import pack, unpack
from .region import Region, Tensors

FORMAT, VERSION = "graft-mask", 3
# dtypes of selected values: a base model in float32 holds them all exactly
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# and of heads and buffers, which travel whole
WHOLE = (*FLOATS, torch.int64, torch.int32)
# dtypes of an exact difference: all that safetensors writes
ALL = (
    *(
        *WHOLE,
        torch.float64,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    ),
    *(torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)
# the entry of a header whose values are bits, which may be of any type, infinite or no numbers
EXACT = "exact"
# that of a compact file: the type of each tensor's values
COMPACT = "compact"
# largest tensor whose indices are stored in four bytes
INT32_LIMIT = 2**31
# a tensor's indices are counted in int64
MOST_PARAMETERS = 2**63
LONGEST_HEADER = 10**8  # bytes, as safetensors has it
# the digest stands first in the header, where no text of the maker's can be taken for it
DIGEST, ZEROS = "sha256", "0" * 64
PLACE = re.compile(rb'"graft":"\{\\"sha256\\": \\"([0-9a-f]{64})')


@dataclass(frozen=True)
class StoredMask:
    """A mask with the values it selects (none in a file of `GraftMask.save`), what travels whole, and what the header says."""

    mask: GraftMask
    values: dict[str, Tensor]
    head: dict[str, Tensor]
    about: dict[str, Any]


class Header(BaseModel):
    """The entries of a header that are read; others may be present."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    shapes: dict[str, list[Annotated[int, Field(ge=0)]]]
    selected: int
    model: str | None = None
    fingerprint: str | None = None
    task: str | None = None
    seed: int | None = None
    localizer: str | None = None
    found: dict[str, Any] | None = None
    k: int | None = None
    model_parameters: Annotated[int, Field(gt=0)] | None = None

    @field_validator("shapes")
    @classmethod
    def _check_size(cls, shapes: dict[str, list[int]]) -> dict[str, list[int]]:
        if not 0 < sum(map(prod, shapes.values())) < MOST_PARAMETERS:
            raise ValueError("shapes of tensors with at least one parameter and fewer than 2^63")
        return shapes


# --- Writing -------------------------------------------------------------------------------------------------------------


def write_mask(path: Path, stored: StoredMask, compact: bool = False) -> None:
    """Write a mask file, without values if there are none; equal masks give equal bytes."""
    mask, region = stored.mask, stored.mask.region
    kinds = {name: torch.int32 if prod(region.shapes[name]) < INT32_LIMIT else torch.int64 for name in mask.indices}
    tensors = {f"head/{name}": whole.contiguous() for name, whole in stored.head.items()}
    values = {name: stored.values[name].contiguous() for name in mask.indices if stored.values}
    if compact:
        tensors |= pack({name: at.cpu() for name, at in mask.indices.items()}, values)
    else:
        tensors |= {f"indices/{name}": at.to(kinds[name], copy=True) for name, at in mask.indices.items()}
        tensors |= {f"values/{name}": part for name, part in values.items()}
    header = {**stored.about, "format": FORMAT, "version": VERSION, "selected": mask.selected}
    header |= (
        {COMPACT: {name: str(part.dtype).removeprefix("torch.") for name, part in values.items()}} if compact else {}
    )
    header |= {"graftable": region.size, "sparsity": mask.sparsity}
    header["shapes"] = {name: list(shape) for name, shape in region.shapes.items()}
    # only the top level is sorted: the order of `shapes` is the order of the region
    text = json.dumps({DIGEST: ZEROS, **dict(sorted(header.items()))})
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"graft": text})
        seal(partial)


def seal(path: Path) -> None:
    """Write the digest of a mask file into its place in the header."""
    with path.open("r+b") as file:
        place, digest = _digests(file)
        file.seek(place.start(1))
        file.write(digest)


def _digests(file: BinaryIO) -> tuple[re.Match, bytes]:
    """The digest in the header, and that of the file; raises ValueError for a file that has none."""
    size = file.read(8)
    head = size + file.read(min(int.from_bytes(size, "little"), LONGEST_HEADER))
    if (place := PLACE.search(head)) is None:
        raise ValueError("has no SHA-256 of its content")
    whole = head[: place.start(1)] + ZEROS.encode() + head[place.end(1) :]
    return place, file_digest(file, lambda: sha256(whole)).hexdigest().encode()


# --- Reading -------------------------------------------------------------------------------------------------------------


def load_mask(path: str | Path) -> GraftMask:
    """Read the mask in a file of `GraftMask.save`, of the pipeline or of a patch; raises MaskError if it is missing or damaged."""
    return read_stored(Path(path)).mask


def read_mask(path: Path) -> StoredMask:
    """Read a mask with its fine-tuned values; raises MaskError if it is missing or damaged, or has none."""
    stored = read_stored(path)
    if stored.mask.indices and not stored.values:
        raise MaskError(
            f"{path}: a mask without fine-tuned values, which this needs; skill_grafting.load_mask reads it"
        )
    return stored


def read_mask_for(path: Path, pretrained: Tensors, model: str) -> StoredMask:
    """`read_mask`, for the region of these pretrained values of the model of this name alone (see `require_model`)."""
    stored, region = read_mask(path), Region({name: tuple(values.shape) for name, values in pretrained.items()})
    require_model(path, stored.about, region, fingerprint(region, pretrained), model)
    return stored


def read_stored(path: Path) -> StoredMask:
    """What is in a mask file, with or without values: the one way into it, for patches, too.

    It is of one writer's file, even if another's takes its place meanwhile.  Raises MaskError if it is missing, no regular file,
    may not be read, is damaged or of another format.
    """
    try:
        # a pipe would keep whoever opens it waiting
        opened = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except FileNotFoundError:
        raise MaskError(f"{path}: no such mask or patch") from None
    except IsADirectoryError:
        raise MaskError(f"{path}: is a folder; name the file in it") from None
    except OSError as error:
        raise MaskError(f"{path}: can't be read: {error.strerror}") from None
    with opened:
        if not S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise MaskError(f"{path}: is no regular file")
        try:
            return _read(opened, path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise MaskError(f"{path}: damaged: {error}") from error


def _read(opened: BinaryIO, path: Path) -> StoredMask:
    """The content of an open file; raises MaskError or any error of a reader for what is damaged."""
    with safe_open(f"/dev/fd/{opened.fileno()}", framework="pt") as file:
        about = _header(json.loads((file.metadata() or {}).get("graft", "null")), path)
        place, digest = _digests(opened)
        if place[1] != digest:
            raise ValueError("its content is not what was written")
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("indices", "values", "head", "gaps", "packed")}
        for key in file.keys():  # noqa: SIM118 - not a dict
            part, _, name = key.partition("/")
            parts[part][name] = file.get_tensor(key)
    if (kinds := about.pop(COMPACT, None)) is not None:
        parts["indices"], parts["values"] = unpack(parts["gaps"], parts["packed"], kinds, about["selected"])
    mask, values = _mask_of(about, parts["indices"]), parts["values"]
    if values and values.keys() != mask.indices.keys():
        raise ValueError("indices and values don't name the same tensors")
    for name in values:
        if values[name].shape != mask.indices[name].shape:
            counts = f"{len(mask.indices[name])} indices and values of the shape {[*values[name].shape]}"
            raise ValueError(f"{name} has {counts}")
    require_held(values, parts["head"], bool(about.get(EXACT)))
    return StoredMask(mask, values, parts["head"], about)


def _header(about: object, path: Path) -> dict[str, Any]:
    json.dumps(about, ensure_ascii=False).encode()  # half a surrogate pair can be neither shown nor written
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise MaskError(f"{path}: not a mask file")
    if (version := about.get("version")) != VERSION:
        raise MaskError(f"{path}: format version {version}, this program reads {VERSION}; what made it makes it anew")
    try:
        Header.model_validate(about)
    except ValidationError as error:
        raise ValueError(plain_problem(error.errors()[0], "header", Header)) from None
    return {name: value for name, value in about.items() if name != DIGEST}


def _mask_of(about: dict[str, Any], indices: dict[str, Tensor]) -> GraftMask:
    for name, row in indices.items():
        if row.dtype not in (torch.int32, torch.int64) or row.dim() != 1:
            raise ValueError(f"{name}: indices must be one row of whole numbers")
    region = Region({name: tuple(shape) for name, shape in about["shapes"].items()})
    order = [name for name in region.shapes if name in indices] + [
        name for name in indices if name not in region.shapes
    ]
    try:
        mask = GraftMask(region, {name: indices[name].to(torch.int64) for name in order}, about.get("found") or {})
    except MaskError as error:
        raise ValueError(str(error)) from None
    if mask.selected != about["selected"]:
        raise ValueError(f"selects {mask.selected} parameters, its header says {about['selected']}")
    return mask


def require_held(values: Tensors, head: Tensors, exact: bool = False) -> None:
    """Raise ValueError unless selected values, and what travels whole, are of types that a file holds, and finite if not `exact`."""
    for parts, kinds in ((values, ALL if exact else FLOATS), (head, ALL if exact else WHOLE)):
        for name, part in parts.items():
            if part.dtype not in kinds:
                held = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
                raise ValueError(f"{name} is {part.dtype}, and held are {held}")
            if not exact and not bool(part.isfinite().all()):
                raise ValueError(f"{name} has values that are infinite or no numbers")


def require_model(path: Path, about: Mapping[str, Any], region: Region, known: str, name: str) -> None:
    """Raise MaskError unless the file was made for exactly this pretrained model and region."""
    theirs = {name_: tuple(shape) for name_, shape in about["shapes"].items()}
    if theirs != region.shapes or about.get("fingerprint") != known:
        made_for = f"{about.get('model')} (fingerprint {str(about.get('fingerprint'))[:12]})"
        raise MaskError(f"{path}: was made for {made_for}, not for {name} ({known[:12]})")
