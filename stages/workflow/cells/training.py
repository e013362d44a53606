"""What stages train or move: a (task, seed), the point that its fine-tuning chose, and one model that several trained heads read."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Tensors
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.errors import ModelError
from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_json, read_rows
from stages.text.models.shared import SharedModel
from stages.text.tasks.runtime import Runtime, seeded_torch
from stages.text.tasks.settings import ModelParams
from stages.text.training.finetuning import TrainingCell
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths


def open_training(task: str, seed: int, model: ModelParams, machine: Runtime) -> TrainingCell:
    """A (task, seed) to be trained, with its stored k-shot rows."""
    rows = {split: read_rows(paths.sample(task, seed, split)) for split in ("train", "dev")}
    return TrainingCell(read_task(task), seed, rows, model, machine, paths.PRETRAINED)


def chosen_point(task: str, seed: int) -> dict[str, Any]:
    """batch_size, learning_rate and steps of a cell's stored fine-tuning; raises ModelError if there is none, or if it was fine-tuned elsewhere."""
    file = paths.finetuned(task, seed) / "training.json"
    record = read_json(file, ModelError)
    if "chosen" not in record:
        raise ModelError(
            f"{file}: {record.get('checkpoint')} was fine-tuned elsewhere, so its batch size and steps aren't known, which this "
            "stage trains by; take it out (an empty list of its section), or set finetune.source=train"
        )
    return record["chosen"]


def open_shared(tasks: list[str], seed: int, settings: ModelParams, machine: Runtime) -> SharedModel:
    """The pretrained model as the trained heads of these tasks, or their label words, read it; `settings` is the `model` section."""
    names = read_anatomy(paths.PRETRAINED).names([HEAD])
    heads = {task: read_tensors(paths.finetuned(task, seed), names) for task in tasks}
    with seeded_torch("shared", seed):  # what the pretrained model lacks, until trained heads are in place
        return SharedModel.load(paths.PRETRAINED, [*map(read_task, tasks)], settings, machine, heads=heads)


def stored_bytes(mask: GraftMask, values: Tensors) -> int:
    """Bytes of a mask's indices, four each, and of its values, as in a mask file without heads and header."""
    return 4 * mask.selected + bytes_of(values.values())


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes that the values of these tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
