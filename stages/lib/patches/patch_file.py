"""The patch format: a mask file whose header also says what it takes to use it, so that it can be handed to others.

In a mask file stand the indices, the fine-tuned values and the trained head (`grafting.mask_file`).  A patch adds, under
`patch` in the same header, the class and settings of the model, the task's labels and prompt, and a fingerprint of the whole
pretrained model instead of its graftable region alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from ..data.tasks import Prompt
from ..errors import MaskError, plain_problem
from ..grafting.mask_file import StoredMask, read_mask
from ..grafting.region import Region
from ..models.anatomy import CLASSES
from ..settings import Section
from .locations import COMMAND, mask_at

VERSION = 3
KEY = "patch"
EXPORT = f"`{COMMAND} export MASK --as patch --to FOLDER`"


class PatchMetadata(Section):
    """The requirements for using a patch, besides indices and values."""

    version: Literal[3] = VERSION
    auto_class: Literal["AutoModelForSequenceClassification", "AutoModelForMaskedLM", "AutoModelForCausalLM"]
    labels: list[str] = Field(description="in the order of the logits; none if the patch is for no task in particular")
    config: dict[Literal["pad_token_id", "id2label", "label2id"], Any] = Field(
        description="settings of the model's config that the graft changes: padding, and for a new head its labels"
    )
    base: str = Field(description="name of the pretrained model")
    source: Literal["packaged", "hub", "local"]
    revision: str | None
    fingerprint: str = Field(description="SHA-256 over name, shape and values of `outside`, then of the region")
    outside: dict[str, list[int]] = Field(description="shapes of the pretrained parameters outside the region")
    task: str
    title: str
    prompt: Prompt | None
    max_length: int

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: list[str], info: ValidationInfo) -> list[str]:
        if len(labels) == 1 or (not labels and info.data.get("auto_class") == CLASSES["standard"]):
            raise ValueError("two labels or more, or, without a new head, none at all")
        return labels

    @field_validator("config")
    @classmethod
    def _check_config(cls, config: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        known = {"labels", "auto_class"} <= info.data.keys()  # else they are wrong themselves
        if known and config != names_of_labels(info.data["labels"], info.data["auto_class"]) | padding_of(config):
            raise ValueError("pad_token_id, and for a new head id2label and label2id with the labels in their order")
        return config

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: Prompt | None, info: ValidationInfo) -> Prompt | None:
        wanted = None if info.data.get("auto_class") == CLASSES["standard"] else {*info.data.get("labels", ())} or None
        if (prompt and {*prompt.verbalizer}) != wanted:
            raise ValueError("a prompt with a word for each label, or null for a new head")
        return prompt

    @property
    def mode(self) -> str:
        """The pipeline's `model.mode` that reads labels this way."""
        return next(mode for mode, name in CLASSES.items() if name == self.auto_class)


@dataclass(frozen=True)
class Patch:
    """A patch as read from its file: mask, values and head, and its metadata."""

    path: Path
    stored: StoredMask
    use: PatchMetadata

    @property
    def whole(self) -> Region:
        """Every pretrained parameter, in the order of the fingerprint."""
        return whole_model(self.stored, self.use)


def read_patch_file(path: Path) -> Patch:
    """Read a patch, given by its folder or its file; raises MaskError if it is missing, damaged or of another version."""
    file = mask_at(path)
    stored = read_mask(file)
    return Patch(file, stored, use_of(file, stored))


def read_graft(path: Path) -> StoredMask:
    """Read a mask or a patch; raises MaskError if it is missing, damaged or of another version."""
    stored = read_mask(path)
    if KEY in stored.about:
        use_of(path, stored)
    return stored


def use_of(path: Path, stored: StoredMask) -> PatchMetadata:
    """The header of a patch on its use; raises MaskError if it is only a mask, damaged or of another version."""
    use = stored.about.get(KEY)
    if not isinstance(use, dict):
        raise MaskError(f"{path}: is a mask, not a patch; {EXPORT} makes one of it")
    if use.get("version") != VERSION:
        raise MaskError(
            f"{path}: format version {use.get('version')} of a patch, this program reads {VERSION}; "
            f"{EXPORT} makes it anew from its mask"
        )
    try:
        return PatchMetadata.model_validate(use)
    except ValidationError as error:
        raise MaskError(f"{path}: damaged: {plain_problem(error.errors()[0], KEY, PatchMetadata)}") from error


def whole_model(stored: StoredMask, use: PatchMetadata) -> Region:
    """Every pretrained parameter, in the order of the fingerprint."""
    return Region({name: tuple(shape) for name, shape in use.outside.items()} | stored.mask.region.shapes)


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
