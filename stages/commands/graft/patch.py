"""A patch: a mask file whose header also says what it takes to use it, so that it can be handed to others.

In a mask file stand the indices, the fine-tuned values and the trained head (`stages.lib.graft.mask_file`).
A patch adds, under `patch` in the same header, the class and settings of the model, the task's labels
and prompt, and a fingerprint of the whole pretrained model instead of its graftable region alone.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from stages.lib.data.tasks import Prompt
from stages.lib.errors import MaskError, plain_problem
from stages.lib.graft.mask_file import StoredMask, read_mask
from stages.lib.graft.region import Region
from stages.lib.settings import Section

VERSION = 1
KEY = "patch"
CLASSES = {
    "standard": "AutoModelForSequenceClassification",
    "prompt": "AutoModelForMaskedLM",
    "autoregressive": "AutoModelForCausalLM",
}


class Use(Section):
    """What it takes to use a patch, besides indices and values."""

    version: Literal[1] = VERSION
    auto_class: Literal["AutoModelForSequenceClassification", "AutoModelForMaskedLM", "AutoModelForCausalLM"]
    config: dict[str, Any] = Field(description="settings of the model's config that the graft changes")
    base: str = Field(description="name of the pretrained model")
    source: Literal["packaged", "hub", "local"]
    revision: str | None
    fingerprint: str = Field(description="SHA-256 over name, shape and values of `outside`, then of the region")
    outside: dict[str, list[int]] = Field(description="shapes of the pretrained parameters outside the region")
    task: str
    title: str
    labels: list[str]
    prompt: Prompt | None
    max_length: int

    @property
    def mode(self) -> str:
        """The pipeline's `model.mode` that reads labels this way."""
        return next(mode for mode, name in CLASSES.items() if name == self.auto_class)


def read_patch(path: Path) -> tuple[StoredMask, Use]:
    """Read a patch file; raises MaskError if it is missing, damaged, of another version, or only a mask."""
    stored = read_mask(path)
    use = stored.about.get(KEY)
    if not isinstance(use, dict):
        raise MaskError(f"{path}: is a mask, not a patch; `python -m stages.graft export --as patch` makes one of it")
    if use.get("version") != VERSION:
        raise MaskError(f"{path}: format version {use.get('version')} of a patch, this program reads {VERSION}")
    try:
        return stored, Use.model_validate(use)
    except ValidationError as error:
        raise MaskError(f"{path}: damaged: {plain_problem(error.errors()[0], KEY, Use)}") from error


def whole_model(stored: StoredMask, use: Use) -> Region:
    """Every pretrained parameter, in the order of the fingerprint."""
    outside = {name: tuple(shape) for name, shape in use.outside.items()}
    return Region({**outside, **stored.mask.region.shapes})
