"""A (task, seed) to be trained, and the point that its stored fine-tuning chose."""

from typing import Any

from skill_grafting.errors import ModelError
from skill_grafting.io import read_json, read_rows
from skill_grafting.runtime import Runtime
from skill_grafting.settings import ModelParams
from skill_grafting.training.finetuning import TrainingCell
from stages.workflow.core import paths
from stages.workflow.core.stored import read_task


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
