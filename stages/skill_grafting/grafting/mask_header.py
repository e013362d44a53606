"""The header of a mask file, read without importing torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open

from ..support.errors import MaskError, plain_problem
from .region import FORMAT, VERSION

# a tensor's indices are counted in int64
MOST_PARAMETERS = 2**63


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


@contextmanager
def open_mask(path: Path, framework: str = "np") -> Iterator[tuple[dict[str, Any], Any]]:
    """The header of a mask file, and its tensors as an open safetensors file: of one writer's file, even if another's takes its place.

    Raises MaskError, also where reading them finds the file damaged.
    """
    if path.is_dir():
        raise MaskError(f"{path}: is a folder; name the file in it")
    if not path.exists():
        raise MaskError(f"{path}: no such mask{'; `dvc repro` makes it' if path.parts[0] == 'masks' else ''}")
    try:
        with safe_open(path, framework=framework) as file:
            yield _header(path, json.loads((file.metadata() or {}).get("graft", "null"))), file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MaskError(f"{path}: damaged: {error}") from error


def _header(path: Path, about: object) -> dict[str, Any]:
    json.dumps(about, ensure_ascii=False).encode()  # half a surrogate pair can be neither shown nor written
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise MaskError(f"{path}: not a mask file")
    if (version := about.get("version")) != VERSION:
        hint = f"this program reads {VERSION}; what made it makes it anew"
        raise MaskError(f"{path}: format version {version}, {hint}")
    try:
        Header.model_validate(about)
    except ValidationError as error:
        raise MaskError(f"{path}: damaged: {plain_problem(error.errors()[0], 'header', Header)}") from None
    return about


def read_header(path: Path) -> dict[str, Any]:
    """The header of a mask file, without its tensors; raises MaskError."""
    with open_mask(path) as (about, _):
        return about
