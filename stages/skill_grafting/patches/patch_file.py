"""The file of a patch: a mask file whose header says, under `patch`, all that others need to use it.

Beside indices and values it has what travels whole (heads, buffers that differ), a fingerprint of the whole base model, and how the
mask was found.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints, ValidationError, field_validator, model_validator
from torch import Tensor

from ..checkpoints.settings import Beside
from ..grafting.fingerprint import Known
from ..grafting.mask import GraftMask
from ..grafting.mask_files import EXACT, StoredMask, read_stored, write_mask
from ..grafting.region import Region
from ..modules.heads import names_of_labels
from ..support.errors import MaskError, ParamsError, a_kind, one_line, plain_problem
from ..support.fields import Section
from ..support.formatting import small_percent
from ..support.offline import hub_answers

PATCH = "patch.safetensors"
VERSION = 5
KEY = "patch"


class PatchMetadata(Section):
    """What a patch was made of, and how the model that it makes is used."""

    version: Literal[5] = VERSION
    model_class: str | None = Field(description="a class of transformers; null of another module")
    base: str = Field(description="name of the base model")
    source: Literal["packaged", "hub", "local"]
    revision: str | None
    fingerprint: str = Field(
        description="SHA-256 over name, shape and values of `outside`, then of the region, in the base"
    )
    fast: str | None = Field(
        None,
        description="XXH3 (128 bits) over the same, in the types that the base was read in, by which it is known without the "
        "fingerprint; null of older patches",
    )
    makes: str | None = Field(
        None, description="the fingerprint of what it makes of the base, of an exact difference; null of others"
    )
    outside: dict[str, list[int]] = Field(description="shapes of the base's parameters outside the region, heads aside")
    head: dict[str, list[int]] = Field(description="shapes of what travels whole: a new head, buffers that differ")
    title: str
    labels: list[str] = Field(description="in the order of the logits; none if the outputs are no labels")
    notes: dict[str, JsonValue] = Field(
        description="what its maker says about its use, as JSON, which nothing here reads"
    )
    config: dict[Literal["pad_token_id", "problem_type", "id2label", "label2id"], Any] = Field(
        description="settings of the model's config that the patch changes: padding, and for a new head its labels"
    )
    generation: dict[Annotated[str, StringConstraints(pattern="^[a-z][a-z_]*$")], JsonValue] = Field(
        description="settings of generation that change, such as end tokens"
    )
    beside: dict[Beside, dict[str, JsonValue]] = Field(
        description="files of settings that the tuned folder has otherwise"
    )

    @field_validator("model_class")
    @classmethod
    def _check_class(cls, name: str | None) -> str | None:
        if name is not None and (not name.isidentifier() or name.startswith(("Auto", "_"))):
            raise ValueError("the name of a model's class, or null")
        return name

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: list[str]) -> list[str]:
        if len(labels) == 1 or len({*labels}) < len(labels):
            raise ValueError("names of two labels or more, which differ; a single output is a number and no label")
        return labels

    @model_validator(mode="after")
    def _check(self) -> "PatchMetadata":
        padding = self.config.get("pad_token_id")
        if not (padding is None or (type(padding) is int and padding >= 0)):
            raise ValueError("metadata whose config has a token's number, or null, as pad_token_id")
        names = {name: value for name, value in self.config.items() if name in ("id2label", "label2id")}
        if names and names != names_of_labels(self.labels):
            raise ValueError("metadata whose config has the labels that it has itself")
        if self.head.keys() & self.outside.keys():
            raise ValueError("metadata whose head is none of the base's parameters")
        return self


@dataclass(repr=False)
class PatchContent:
    """What is in the file of a patch: indices, values and whole tensors, and the metadata."""

    stored: StoredMask
    use: PatchMetadata

    @property
    def mask(self) -> GraftMask:
        """Where the values go, and how it was found (`mask.record`)."""
        return self.stored.mask

    @property
    def values(self) -> dict[str, Tensor]:
        """The fine-tuned values by parameter, shape (number selected there,)."""
        return self.stored.values

    @property
    def head(self) -> dict[str, Tensor]:
        """What travels whole: a new head, buffers that differ."""
        return self.stored.head

    @property
    def region(self) -> Region:
        """What the fingerprint is of: all parameters of the base but heads, those of the mask's region last."""
        outside = {name: tuple(shape) for name, shape in self.use.outside.items()}
        return Region(outside | self.mask.region.shapes)

    @property
    def known(self) -> Known:
        """What its base is known by."""
        return Known(self.use.fingerprint, self.use.fast)

    @property
    def size(self) -> str:
        """Selected parameters in words, with both denominators."""
        mask, whole = self.mask, self.region.size
        text = f"{mask.selected:,} of {mask.region.size:,} graftable parameters ({small_percent(mask.sparsity)})"
        return f"{text}, {small_percent(mask.selected / whole)} of the model's {whole:,}"

    def __repr__(self) -> str:
        title = f"{self.use.title}, " if self.use.title else ""
        return f"Patch({title}{self.mask.selected:,} values for {self.use.base}, {len(self.head)} tensors whole)"


def write_patch(path: Path, patch: PatchContent, compact: bool = False) -> None:
    """Write the file; equal patches give equal bytes."""
    about = {"found": patch.mask.record, "model_parameters": patch.region.size, KEY: patch.use.model_dump()}
    about |= {EXACT: True} if patch.use.makes else {}
    write_mask(path, replace(patch.stored, about=about), compact)


def read_patch(place: str | Path, revision: str | None = None, **hub: Any) -> PatchContent:
    """The patch of a folder, of a file, or of a repository on the hub; MaskError if it is missing, damaged, a mask, or of another version."""
    if not isinstance(place, str | Path):
        raise ParamsError(f"place: should be a folder, a file or a name on the hub, not {a_kind(place)}")
    if not os.path.lexists(place) and str(place).count("/") == 1:
        place = _fetched(str(place), revision, **hub)
    file, found = read_graft(Path(place))
    if not isinstance(found, PatchContent):
        raise MaskError(f"{file}: is a mask, not a patch")
    return found


def _fetched(name: str, revision: str | None, **hub: Any) -> str:
    """The file of a patch in the hub's cache, fetched if need be; raises MaskError, within seconds where no hub answers."""
    reachable = hub_answers()  # asked before the library is imported
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(name, PATCH, revision=revision, **{"local_files_only": not reachable, **hub})
    except Exception as error:  # a connection that breaks has no error type of its own
        why = (
            one_line(error)
            if reachable
            else "it is not in the cache, and the hub doesn't answer (or HF_HUB_OFFLINE is set)"
        )
        raise MaskError(f"{name}: no folder, and not on the hub: {why}") from error


def read_graft(place: Path) -> tuple[Path, PatchContent | StoredMask]:
    """The file of a patch or a mask, and what is in it; raises MaskError."""
    file = place / PATCH if os.path.isdir(place) else place  # noqa: PTH112 - false for a name that is too long
    stored = read_stored(file)
    if KEY not in stored.about:
        return file, stored
    use = stored.about[KEY]
    version = use.get("version") if isinstance(use, dict) else use
    if version != VERSION:
        reads = f"this program reads {VERSION}; what made it makes it anew"
        raise MaskError(f"{file}: format version {version} of a patch, {reads}")
    try:
        found = PatchContent(stored, PatchMetadata.model_validate(use))
    except ValidationError as error:
        raise MaskError(f"{file}: damaged: {plain_problem(error.errors()[0], KEY, PatchMetadata)}") from error
    if stored.mask.indices and not stored.values:
        raise MaskError(f"{file}: damaged: it has no values")
    there, wanted = {name: [*part.shape] for name, part in found.head.items()}, found.use.head
    if there != wanted or wanted.keys() & found.mask.region.shapes.keys():
        name = min((name for name in {*there, *wanted} if there.get(name) != wanted.get(name)), default=min(wanted))
        shapes = f"{there.get(name, 'none')} and should be {wanted.get(name, 'none')}"
        raise MaskError(f"{file}: damaged: its head is {name} {shapes}")
    return file, found
