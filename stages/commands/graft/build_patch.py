"""From a mask of the pipeline to a patch: adds what the project knows and others don't."""

from pathlib import Path
from typing import Any

from torch import Tensor

from stages.commands.graft.base import Base, require_base
from stages.commands.graft.patch import CLASSES, KEY, Use, whole_model
from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import MaskError, ModelError, did_you_mean
from stages.lib.graft.mask_file import StoredMask
from stages.lib.io import read_json


def tasks_of(stored: StoredMask) -> list[str]:
    """The tasks that a mask serves: one, or several if it was composed and is not yet a patch."""
    about = stored.about
    composed = about.get("grafts", []) if KEY not in about else []
    return [*dict.fromkeys(part["task"] for part in composed)] or [about.get("task", "")]


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


def head_of(stored: StoredMask, task: str) -> dict[str, Tensor]:
    """The trained head of a task; a composed mask has those of all its tasks, as `<task>:<name>`."""
    own = {name.removeprefix(f"{task}:"): values for name, values in stored.head.items() if name.startswith(f"{task}:")}
    return own or {name: values for name, values in stored.head.items() if ":" not in name}


def make_patch(path: Path, stored: StoredMask, task: TaskSpec, base: Base, max_length: int) -> tuple[StoredMask, Use]:
    """The patch of a mask for one of its tasks; raises MaskError if it was made for another base model."""
    require_base(path, stored, base)
    mode, region = base.anatomy.mode, stored.mask.region
    problems = task.prompt_problems(mode)
    if problems:
        raise ModelError("; ".join(problems))
    origin = base.anatomy
    use = Use(
        auto_class=CLASSES[mode],
        config=_config(base.folder, task, mode),
        base=origin.name,
        source=origin.source,
        revision=origin.revision,
        fingerprint="",
        outside={name: list(shape) for name, shape in base.shapes.items() if name not in region.shapes},
        task=task.name,
        title=task.title,
        labels=task.labels,
        prompt=task.prompt_for(mode),
        max_length=max_length,
    )
    use = use.model_copy(update={"fingerprint": base.fingerprint(whole_model(stored, use))})
    about = {**stored.about, "task": task.name, KEY: use.model_dump()}
    return StoredMask(stored.mask, stored.values, head_of(stored, task.name), about), use


def _config(folder: Path, task: TaskSpec, mode: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"pad_token_id": _pad_token_id(folder)}
    if mode == "standard":
        changes["id2label"] = {str(number): label for number, label in enumerate(task.labels)}
        changes["label2id"] = {label: number for number, label in enumerate(task.labels)}
    return changes


def _pad_token_id(folder: Path) -> int | None:
    """What the tokenizer pads with; models that have no padding token of their own must be told."""
    token = read_json(folder / "tokenizer_config.json", ModelError).get("pad_token")
    word = token["content"] if isinstance(token, dict) else token
    added = read_json(folder / "tokenizer.json", ModelError)["added_tokens"]
    known = {entry["content"]: entry["id"] for entry in added}
    return known.get(word, read_json(folder / "config.json", ModelError).get("pad_token_id"))
