"""One pretrained model that the trained heads of several tasks read."""

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.blocks import HEAD
from skill_grafting.models.loading import read_tensors
from skill_grafting.models.shared import SharedModel
from skill_grafting.runtime import Runtime, seeded_torch
from skill_grafting.settings import ModelParams
from stages.workflow.core import paths
from stages.workflow.core.stored import read_task


def open_shared(tasks: list[str], seed: int, settings: ModelParams, machine: Runtime) -> SharedModel:
    """The pretrained model as the trained heads of these tasks, or their label words, read it; `settings` is the `model` section."""
    names = read_anatomy(paths.PRETRAINED).names([HEAD])
    heads = {task: read_tensors(paths.finetuned(task, seed), names) for task in tasks}
    with seeded_torch("shared", seed):  # what the pretrained model lacks, until trained heads are in place
        return SharedModel.load(paths.PRETRAINED, [*map(read_task, tasks)], settings, machine, heads=heads)
