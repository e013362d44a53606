"""Mask files and patches.

In a mask file stand the indices, the fine-tuned values and the trained head (`grafting.mask_file`).  A patch adds, under
`patch` in the same header, all that others need to use it: the class and settings of the model, the task's labels and prompt,
and a fingerprint of the whole pretrained model instead of its graftable region alone; and the SHA-256 of its file (`seal`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..data.tasks import Prompt, TaskSpec
from ..errors import MaskError, ModelError, plain_problem
from ..grafting.mask_file import StoredMask, read_mask, write_mask
from ..grafting.mask_indices import read_header
from ..grafting.region import Region, Tensors
from ..io import require_permission
from ..models.anatomy import CLASSES, ModelSpec
from ..settings import Section
from ..words import small_percent
from .seal import KEY as SEAL
from .seal import UNSEALED, require_sealed, seal

PATCH, CARD = "patch.safetensors", "README.md"
VERSION = 3
KEY = "patch"
EXPORT = "`graft export MASK --to FOLDER`"


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

    @model_validator(mode="after")
    def _check(self) -> "PatchMetadata":
        new_head, padding = self.auto_class == CLASSES["standard"], self.config.get("pad_token_id")
        if len(self.labels) == 1 or (new_head and not self.labels):
            raise ValueError("metadata with two labels or more, or, without a new head, none at all")
        known = padding is None or (type(padding) is int and padding >= 0)
        if not known or self.config != {"pad_token_id": padding, **names_of_labels(self.labels, self.auto_class)}:
            raise ValueError(
                "metadata whose config has pad_token_id, and for a new head id2label and label2id by its labels"
            )
        if (self.prompt and {*self.prompt.verbalizer}) != (None if new_head else {*self.labels} or None):
            raise ValueError("metadata whose prompt has a word for each label, or is null for a new head")
        return self

    @property
    def mode(self) -> str:
        """The pipeline's `model.mode` that reads labels this way."""
        return next(mode for mode, name in CLASSES.items() if name == self.auto_class)

    @property
    def options(self) -> dict[str, Any]:
        """`config` as transformers takes it: labels by whole numbers."""
        return self.config | ({"id2label": dict(enumerate(self.labels))} if "id2label" in self.config else {})


def names_of_labels(labels: list[str], auto_class: str) -> dict[str, Any]:
    """The labels of a new head by a config, in the order of its logits."""
    if auto_class != CLASSES["standard"]:
        return {}
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


@dataclass(frozen=True)
class GraftFile:
    """A mask file, or a patch, which alone has metadata on its use."""

    path: Path
    stored: StoredMask
    use: PatchMetadata | None = None

    @property
    def region(self) -> Region:
        """What the fingerprint is of: the graftable parameters, in a patch after all others of the pretrained model."""
        outside = {name: tuple(shape) for name, shape in self.use.outside.items()} if self.use else {}
        return Region(outside | self.stored.mask.region.shapes)

    @property
    def size(self) -> str:
        """Selected parameters in words, with both denominators."""
        mask, whole = self.stored.mask, self.stored.about.get("model_parameters")
        text = f"{mask.selected:,} of {mask.region.size:,} graftable parameters ({small_percent(mask.sparsity)})"
        return text + (f", {small_percent(mask.selected / whole)} of the model's {whole:,}" if whole else "")


def read_graft(path: Path) -> GraftFile:
    """Read a mask or a patch, given by its folder or its file; raises MaskError if it is missing, damaged or of another version."""
    file = path / PATCH if path.is_dir() else path
    if not file.is_file():
        raise MaskError(f"{file}: no such mask or patch")
    require_permission(file)
    if KEY in read_header(file):
        try:
            require_sealed(file)
        except ValueError as error:
            raise MaskError(f"{file}: damaged: {error}") from None
    stored = read_mask(file)
    return _with_use(GraftFile(file, replace(stored, about={k: v for k, v in stored.about.items() if k != SEAL})))


def write_patch(path: Path, stored: StoredMask) -> None:
    """Write a patch, sealed; equal ones give equal bytes."""
    write_mask(path, replace(stored, about=stored.about | UNSEALED))
    seal(path)


def read_patch(path: Path) -> GraftFile:
    """`read_graft`, of a patch alone."""
    graft = read_graft(path)
    if graft.use is None:
        raise MaskError(f"{graft.path}: is a mask, not a patch; {EXPORT} makes one of it")
    return graft


def _with_use(graft: GraftFile) -> GraftFile:
    if (use := graft.stored.about.get(KEY)) is None:
        return graft
    if not isinstance(use, dict) or use.get("version") != VERSION:
        version = use.get("version") if isinstance(use, dict) else use
        raise MaskError(
            f"{graft.path}: format version {version} of a patch, this program reads {VERSION}; {EXPORT} makes it anew from its mask"
        )
    try:
        return replace(graft, use=PatchMetadata.model_validate(use))
    except ValidationError as error:
        raise MaskError(f"{graft.path}: damaged: {plain_problem(error.errors()[0], KEY, PatchMetadata)}") from error


def make_patch(
    graft: GraftFile, task: TaskSpec, spec: ModelSpec, pretrained: Tensors, max_length: int, pad_token_id: int | None
) -> GraftFile:
    """The patch of a mask on a base model, of its values in float32, for one task; without labels, for no task in particular.

    Raises MaskError if the mask's head doesn't fit, ModelError if the task can't be read off this model.
    """
    if task.labels and (problems := task.prompt_problems(spec.mode)):
        raise ModelError("; ".join(problems))
    region = graft.stored.mask.region.shapes
    outside = {name: tuple(shape) for name, shape in spec.pretrained.items() if name not in region}
    use = PatchMetadata(
        auto_class=CLASSES[spec.mode],
        labels=task.labels,
        config={"pad_token_id": pad_token_id, **names_of_labels(task.labels, CLASSES[spec.mode])},
        base=spec.name,
        source=spec.source,
        revision=spec.revision,
        fingerprint=Region(outside | region).fingerprint(pretrained),
        outside={name: list(shape) for name, shape in outside.items()},
        task=task.name,
        title=task.title,
        prompt=task.prompt_for(spec.mode),
        max_length=max_length,
    )
    about = {**graft.stored.about, "task": task.name, KEY: use.model_dump()}
    patch = replace(graft, use=use, stored=replace(graft.stored, about=about))
    require_head(patch, spec.head_shapes(len(task.labels)), spec.name)
    return patch


def require_head(patch: GraftFile, wanted: dict[str, tuple[int, ...]], title: str) -> None:
    """Raise MaskError unless the head of a patch has the shapes of the head that this model has."""
    if (there := {name: tuple(part.shape) for name, part in patch.stored.head.items()}) != wanted:
        found, needed = (
            ", ".join(f"{name} {list(shape)}" for name, shape in sorted(head.items())) or "none"
            for head in (there, wanted)
        )
        labels = f"of {patch.use.auto_class} for {len(patch.use.labels)} labels"
        raise MaskError(f"{patch.path}: its head {labels} is {found}, and that of {title} is {needed}")


def task_of(name: str, title: str, labels: list[str], mode: str, prompt: Prompt | dict | None = None) -> TaskSpec:
    """The task of a patch or a model whose labels are read off in this mode; pydantic's ValidationError for a prompt that can't be."""
    prompts = {"prompt" if mode == "prompt" else "causal_prompt": prompt}
    return TaskSpec(name=name, title=title, kind=name, labels=labels, **prompts)
