"""Joint models on disk: an ordinary model folder, and the heads of all tasks beside it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from stages.lib.data.task_cards import read_task
from stages.lib.errors import ModelError
from stages.lib.models.groups import HEAD
from stages.lib.models.loading import save_model
from stages.lib.models.shared import SharedModel
from stages.lib.runtime import Runtime

HEADS = "heads.safetensors"


def save_joint(shared: SharedModel, folder: Path) -> None:
    """Write an ordinary model folder without heads, and all tasks' heads beside it, as `<task>/<name>`."""
    view = next(iter(shared.views.values()))
    folder.mkdir(parents=True, exist_ok=True)
    save_model(view.model, view.tokenizer, folder, [name for name, group in view.groups().items() if group == HEAD])
    heads = {
        f"{task}/{name}": values.detach().contiguous()
        for task, head in shared.heads().items()
        for name, values in head.items()
    }
    save_file(heads, folder / HEADS)


def load_joint(folder: Path, tasks: Iterable[str], settings: Any, runtime: Runtime) -> SharedModel:
    """A joint model with the heads of these tasks; `settings` is the `model` section.

    Raises ModelError if the folder is missing or damaged, or hasn't got a task's head.
    """
    shared = SharedModel.load(folder, [read_task(task) for task in tasks], settings, runtime)
    try:
        with safe_open(folder / HEADS, framework="pt") as file:
            for task, head in shared.heads().items():
                shared.views[task].put({name: file.get_tensor(f"{task}/{name}") for name in head})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / HEADS}: missing or damaged, `dvc repro` makes it: {error}") from error
    return shared
