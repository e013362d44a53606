"""A patch: a mask file whose header also says what it takes to use it, so that it can be handed to others.

In a mask file stand the indices, the fine-tuned values and the trained head (`stages.lib.grafting.mask_file`).
A patch adds, under `patch` in the same header, the class and settings of the model, the task's labels
and prompt, and a fingerprint of the whole pretrained model instead of its graftable region alone.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from torch import Tensor

from ..data.tasks import Prompt, TaskSpec
from ..errors import MaskError, ModelError, did_you_mean, plain_problem
from ..grafting.mask import FLOATS
from ..grafting.mask_file import StoredMask, read_mask
from ..grafting.region import Region
from ..io import read_json
from ..models.anatomy import CLASSES
from ..settings import Section
from .base import Base, open_base, read_base, require_base
from .locations import CONFIG
from .patch_file import EXPORT, KEY, VERSION, names_of_labels, padding_of


class Use(Section):
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


def read_graft(path: Path) -> StoredMask:
    """Read a mask or a patch; raises MaskError if it is missing, damaged or of another version."""
    stored = read_mask(path)
    if KEY in stored.about:
        use_of(path, stored)
    return stored


def base_of(path: Path, stored: StoredMask, folder: Path) -> AbstractContextManager[Base]:
    """The base model in a folder, for use inside `with`: for a patch any folder of it, for a mask one of the stage `model`."""
    return open_base(folder, use_of(path, stored).mode) if KEY in stored.about else nullcontext(read_base(folder))


def use_of(path: Path, stored: StoredMask) -> Use:
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
        return Use.model_validate(use)
    except ValidationError as error:
        raise MaskError(f"{path}: damaged: {plain_problem(error.errors()[0], KEY, Use)}") from error


def require_whole_base(path: Path, stored: StoredMask, use: Use, base: Base, folder: Path) -> None:
    """Raise MaskError unless a patch was made for exactly this base model, embeddings included."""
    region = _whole_model(stored, use)
    theirs = base.fingerprint(region) if region.shapes.keys() == base.shapes.keys() else ""
    if theirs != use.fingerprint:
        difference = f"fingerprint {theirs[:12]}" if theirs else "other names or shapes"
        made_for = f"{use.base} (fingerprint {use.fingerprint[:12]})"
        raise MaskError(f"{path}: was made for {made_for}, not for the model in {folder} ({difference})")
    padding, words = use.config["pad_token_id"], read_json(base.folder / CONFIG, ModelError).get("vocab_size")
    if padding is not None and words is not None and padding >= words:
        raise MaskError(f"{path}: damaged: patch.config.pad_token_id is {padding}, and the model has {words} tokens")
    _require_head(path, stored.head, use.labels, base)


def tasks_of(stored: StoredMask) -> list[str]:
    """The tasks that a mask serves: one, or several if it was composed and is not yet a patch."""
    composed = stored.about.get("grafts", []) if KEY not in stored.about else []
    return [*dict.fromkeys(part["task"] for part in composed)] or [stored.about.get("task", "")]


def chosen_task(path: Path, stored: StoredMask, task: str | None) -> str:
    """The task to make a patch for; raises MaskError if the mask has several or doesn't have it."""
    tasks = tasks_of(stored)
    if task is None and len(tasks) > 1:
        raise MaskError(f"{path}: serves {len(tasks)} tasks; say --task, one of {', '.join(tasks)}")
    if task is not None and task not in tasks:
        raise MaskError(
            f"{path}: doesn't serve the task {task!r}{did_you_mean(task, tasks)}; it has {', '.join(tasks)}"
        )
    return task or tasks[0]


def taken_out(stored: StoredMask, task: str) -> StoredMask:
    """A patch for one of their tasks where patches were composed; any other mask as it is."""
    grafts = stored.about.get("grafts", [])
    use = next((part[KEY] for part in grafts if part["task"] == task and KEY in part), None)
    if KEY in stored.about or use is None:
        return stored
    named = [{key: value for key, value in part.items() if key != KEY} for part in grafts]
    about = {**stored.about, "grafts": named, "task": task, KEY: use}
    return replace(stored, head=_head(stored, task), about=about)


def make_patch(path: Path, stored: StoredMask, task: TaskSpec, base: Base, max_length: int) -> tuple[StoredMask, Use]:
    """The patch of a mask for one of its tasks; raises MaskError if it was made for another base model."""
    require_base(path, stored, base)
    return new_patch(path, stored, task, base, max_length, _pad_token_id(base.folder))


def new_patch(
    path: Path, stored: StoredMask, task: TaskSpec, base: Base, max_length: int, pad_token_id: int | None
) -> tuple[StoredMask, Use]:
    """The patch of a mask of this base model; `path` is what messages call it.

    A task without labels makes a patch for no task in particular, of a model without a new head.
    """
    origin, mode = base.anatomy, base.anatomy.mode
    if task.labels and (problems := task.prompt_problems(mode)):
        raise ModelError("; ".join(problems))
    head = _head(stored, task.name)
    _require_head(path, head, task.labels, base)
    use = Use(
        auto_class=CLASSES[mode],
        labels=task.labels,
        config={"pad_token_id": pad_token_id, **names_of_labels(task.labels, CLASSES[mode])},
        base=origin.name,
        source=origin.source,
        revision=origin.revision,
        fingerprint="",
        outside={name: list(shape) for name, shape in base.shapes.items() if name not in stored.mask.region.shapes},
        task=task.name,
        title=task.title,
        prompt=task.prompt_for(mode),
        max_length=max_length,
    )
    use = use.model_copy(update={"fingerprint": base.fingerprint(_whole_model(stored, use))})
    about = {**stored.about, "task": task.name, KEY: use.model_dump()}
    return replace(stored, head=head, about=about), use


def _whole_model(stored: StoredMask, use: Use) -> Region:
    """Every pretrained parameter, in the order of the fingerprint."""
    return Region({name: tuple(shape) for name, shape in use.outside.items()} | stored.mask.region.shapes)


def _head(stored: StoredMask, task: str) -> dict[str, Tensor]:
    """The trained head of a task; a composed mask has those of all its tasks, as `<task>:<name>`."""
    parts = {tuple(name.rpartition(":")[::2]): values for name, values in stored.head.items()}
    theirs = {name: values for (owner, name), values in parts.items() if owner == task}
    return theirs or {name: values for (owner, name), values in parts.items() if not owner}


def _require_head(path: Path, head: dict[str, Tensor], labels: list[str], base: Base) -> None:
    wanted = base.anatomy.head_shapes(len(labels))
    there = {name: tuple(values.shape) for name, values in head.items() if values.dtype in FLOATS}
    if there != wanted or len(there) < len(head):
        needed = ", ".join(f"{name} {list(shape)}" for name, shape in wanted.items()) or "no head"
        found = ", ".join(f"{name} {list(values.shape)}" for name, values in head.items()) or "none"
        raise MaskError(f"{path}: the head for {len(labels)} labels should be {needed} in float32 or less, not {found}")


def _pad_token_id(folder: Path) -> int | None:
    """Number of the tokenizer's padding token; models that have none of their own must be told."""
    token = read_json(folder / "tokenizer_config.json", ModelError).get("pad_token")
    word = token["content"] if isinstance(token, dict) else token
    added = read_json(folder / "tokenizer.json", ModelError)["added_tokens"]
    known = {entry["content"]: entry["id"] for entry in added}
    return known.get(word, read_json(folder / CONFIG, ModelError).get("pad_token_id"))
