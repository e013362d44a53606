"""Patches made of masks: for one task of a mask, on its base model."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..data.tasks import TaskSpec
from ..errors import MaskError, ModelError, did_you_mean
from ..grafting.mask import FLOATS
from ..grafting.mask_file import StoredMask
from ..io import read_json
from ..models.anatomy import CLASSES
from .base import Base, open_base, read_base, require_base
from .locations import CONFIG
from .patch_file import KEY, PatchMetadata, names_of_labels, use_of, whole_model


def base_of(path: Path, stored: StoredMask, folder: Path) -> AbstractContextManager[Base]:
    """The base model in a folder, for use inside `with`: for a patch any folder of it, for a mask one of the stage `model`."""
    return open_base(folder, use_of(path, stored).mode) if KEY in stored.about else nullcontext(read_base(folder))


def require_whole_base(path: Path, stored: StoredMask, use: PatchMetadata, base: Base, folder: Path) -> None:
    """Raise MaskError unless a patch was made for exactly this base model, embeddings included."""
    region = whole_model(stored, use)
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


def make_patch(
    path: Path, stored: StoredMask, task: TaskSpec, base: Base, max_length: int
) -> tuple[StoredMask, PatchMetadata]:
    """The patch of a mask for one of its tasks; raises MaskError if it was made for another base model."""
    require_base(path, stored, base)
    return new_patch(path, stored, task, base, max_length, _pad_token_id(base.folder))


def new_patch(
    path: Path, stored: StoredMask, task: TaskSpec, base: Base, max_length: int, pad_token_id: int | None
) -> tuple[StoredMask, PatchMetadata]:
    """The patch of a mask of this base model; `path` is what messages call it.

    A task without labels makes a patch for no task in particular, of a model without a new head.
    """
    origin, mode = base.anatomy, base.anatomy.mode
    if task.labels and (problems := task.prompt_problems(mode)):
        raise ModelError("; ".join(problems))
    head = _head(stored, task.name)
    _require_head(path, head, task.labels, base)
    use = PatchMetadata(
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
    use = use.model_copy(update={"fingerprint": base.fingerprint(whole_model(stored, use))})
    about = {**stored.about, "task": task.name, KEY: use.model_dump()}
    return replace(stored, head=head, about=about), use


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
