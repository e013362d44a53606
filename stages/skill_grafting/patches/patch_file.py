"""The file of a patch: a mask file whose header says, under `patch`, all that others need to use it.

Beside indices and values it has what travels whole (heads, buffers that differ), a fingerprint of the whole base model, how the mask
was found, and the SHA-256 of the file itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from torch import Tensor

from ..grafting.fingerprint import fingerprint
from ..grafting.mask import GraftMask, StoredMask, write_mask
from ..grafting.mask_header import read_header
from ..grafting.mask_reading import read_mask, require_held
from ..grafting.region import Region, Tensors
from ..modules.heads import brought_along, names_of_labels
from ..support.errors import MaskError, ParamsError, plain_problem
from ..support.fields import Section
from ..support.formatting import small_percent
from ..support.io import require_permission
from ..support.prompts import Prompt

PATCH = "patch.safetensors"
VERSION = 4
KEY = "patch"
EXPORT = "`graft export MASK --to FOLDER`"
# where a patch carries the SHA-256 of its own file, over all of it with 64 zeros in the place of the digest
DIGEST = "sha256"
# what stands in the header's JSON text until `seal` replaces it by the digest
UNSEALED = {DIGEST: "0" * 64}
LONGEST_HEADER = 10**8  # bytes, as safetensors has it
PLACE = re.compile(DIGEST.encode() + rb'\\": \\"([0-9a-f]{64})')


class PatchMetadata(Section):
    """What a patch was made of, and how the model that it makes is used."""

    version: Literal[4] = VERSION
    model_class: str | None = Field(description="a class of transformers; null of another module")
    base: str = Field(description="name of the base model")
    source: Literal["packaged", "hub", "local"]
    revision: str | None
    fingerprint: str = Field(
        description="SHA-256 over name, shape and values of `outside`, then of the region, in the base"
    )
    outside: dict[str, list[int]] = Field(description="shapes of the base's parameters outside the region, heads aside")
    head: dict[str, list[int]] = Field(description="shapes of what travels whole: a new head, buffers that differ")
    title: str
    labels: list[str] = Field(description="in the order of the logits; none if the patch is for no task in particular")
    prompt: Prompt | None
    max_length: int | None
    config: dict[Literal["pad_token_id", "problem_type", "id2label", "label2id"], Any] = Field(
        description="settings of the model's config that the patch changes: padding, and for a new head its labels"
    )

    @field_validator("model_class")
    @classmethod
    def _check_class(cls, name: str | None) -> str | None:
        if name is not None and (not name.isidentifier() or name.startswith(("Auto", "_"))):
            raise ValueError("the name of a model's class, or null")
        return name

    @model_validator(mode="after")
    def _check(self) -> "PatchMetadata":
        padding = self.config.get("pad_token_id")
        if len(self.labels) == 1:
            raise ValueError("metadata with two labels or more, or none")
        if not (padding is None or (type(padding) is int and padding >= 0)):
            raise ValueError("metadata whose config has a token's number, or null, as pad_token_id")
        names = {name: value for name, value in self.config.items() if name in ("id2label", "label2id")}
        if names and names != names_of_labels(self.labels):
            raise ValueError("metadata whose config has the labels that it has itself")
        if self.head.keys() & self.outside.keys():
            raise ValueError("metadata whose head is none of the base's parameters")
        if self.prompt and {*self.prompt.verbalizer} != {*self.labels}:
            raise ValueError("metadata whose prompt has a word for each label")
        return self


@dataclass(repr=False)
class PatchContent:
    """What is in the file of a patch: indices, values and whole tensors, and the metadata; `scores`, rows by variant, are its card's."""

    stored: StoredMask
    use: PatchMetadata
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

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
    def size(self) -> str:
        """Selected parameters in words, with both denominators."""
        mask, whole = self.mask, self.region.size
        text = f"{mask.selected:,} of {mask.region.size:,} graftable parameters ({small_percent(mask.sparsity)})"
        return f"{text}, {small_percent(mask.selected / whole)} of the model's {whole:,}"

    def __repr__(self) -> str:
        title = f"{self.use.title}, " if self.use.title else ""
        return f"Patch({title}{self.mask.selected:,} values for {self.use.base}, {len(self.head)} tensors whole)"


def describe(
    stored: StoredMask, before: Tensors, weights: Sequence[str], about: dict[str, Any], config: Mapping[str, Any]
) -> PatchMetadata:
    """The metadata of a patch.

    before: the base's values; weights: names of its parameters; about: name, source, revision, model_class, title, labels, prompt,
    max_length; config: the tuned model's settings.  Raises MaskError for values that a patch can't hold, ParamsError for such facts.
    """
    try:
        require_held(stored.values, stored.head)
    except ValueError as error:  # which a reader of the file would refuse
        raise MaskError(f"{error}: graft(base, tuned, mask) takes it, or turn both models first") from None
    region, labels = stored.mask.region.shapes, about["labels"]
    outside = {name: [*before[name].shape] for name in weights if name not in region and name not in stored.head}
    known = {name: tuple(shape) for name, shape in outside.items()} | region
    facts = {
        "model_class": about.get("model_class"),
        "base": about["name"],
        "source": about["source"],
        "revision": about["revision"],
        "fingerprint": fingerprint(Region(known), before),
        "outside": outside,
        "head": {name: [*part.shape] for name, part in sorted(stored.head.items())},
        "title": about["title"] or about["name"],
        "labels": labels,
        "prompt": about["prompt"],
        "max_length": about["max_length"],
        "config": brought_along(config, labels if stored.head else []),
    }
    try:
        return PatchMetadata(**facts)
    except ValidationError as error:
        problems = (plain_problem(problem, "", PatchMetadata) for problem in error.errors())
        raise ParamsError("; ".join(problems).removeprefix(": ")) from None


def write_patch(path: Path, patch: PatchContent) -> None:
    """Write the file, sealed; equal patches give equal bytes."""
    about = {"found": patch.mask.record, "model_parameters": patch.region.size, KEY: patch.use.model_dump()}
    write_mask(path, replace(patch.stored, about=about | UNSEALED))
    seal(path)


def read_patch(place: str | Path, revision: str | None = None, **hub: Any) -> PatchContent:
    """The patch of a folder, of a file, or of a repository on the hub; MaskError if it is missing, damaged, a mask, or of another version."""
    if not Path(place).exists() and str(place).count("/") == 1:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            place = hf_hub_download(str(place), PATCH, revision=revision, **hub)
        except (HfHubHTTPError, LocalEntryNotFoundError) as error:
            raise MaskError(f"{place}: no folder, and not on the hub: {str(error).splitlines()[0]}") from error
    file, found = read_graft(Path(place))
    if not isinstance(found, PatchContent):
        raise MaskError(f"{file}: is a mask, not a patch; {EXPORT} makes one of it")
    return found


def read_graft(place: Path) -> tuple[Path, PatchContent | StoredMask]:
    """The file of a patch or a mask, and what is in it; raises MaskError."""
    file = place / PATCH if place.is_dir() else place
    if not file.is_file():
        raise MaskError(f"{file}: no such mask or patch")
    require_permission(file)
    header = read_header(file)
    if KEY not in header:
        return file, read_mask(file)
    use = header[KEY]
    version = use.get("version") if isinstance(use, dict) else use
    if version != VERSION:
        reads = f"this program reads {VERSION}; what made it makes it anew"
        raise MaskError(f"{file}: format version {version} of a patch, {reads}")
    try:
        require_sealed(file)
        found = PatchContent(read_mask(file), PatchMetadata.model_validate(use))
    except ValidationError as error:
        raise MaskError(f"{file}: damaged: {plain_problem(error.errors()[0], KEY, PatchMetadata)}") from error
    except ValueError as error:
        raise MaskError(f"{file}: damaged: {error}") from None
    there, wanted = {name: [*part.shape] for name, part in found.head.items()}, found.use.head
    if there != wanted or wanted.keys() & found.mask.region.shapes.keys():
        name = min((name for name in {*there, *wanted} if there.get(name) != wanted.get(name)), default=min(wanted))
        shapes = f"{there.get(name, 'none')} and should be {wanted.get(name, 'none')}"
        raise MaskError(f"{file}: damaged: its head is {name} {shapes}")
    return file, found


def seal(path: Path) -> None:
    """Write the digest of a safetensors file into the placeholder in its header."""
    with path.open("r+b") as file:
        match, digest = _digests(file)
        file.seek(match.start(1))
        file.write(digest)


def require_sealed(path: Path) -> None:
    """Raise ValueError unless a safetensors file matches its digest."""
    with path.open("rb") as file:
        match, digest = _digests(file)
    if match[1] != digest:
        raise ValueError("its content is not what was written")


def _digests(file: BinaryIO) -> tuple[re.Match, bytes]:
    """The digest in the header, and that of the file."""
    size = file.read(8)
    head = size + file.read(min(int.from_bytes(size, "little"), LONGEST_HEADER))
    match = PLACE.search(head)
    if match is None:
        raise ValueError("has no SHA-256 of its content")
    whole = head[: match.start(1)] + UNSEALED[DIGEST].encode() + head[match.end(1) :]
    return match, file_digest(file, lambda: sha256(whole)).hexdigest().encode()
