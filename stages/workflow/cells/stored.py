"""Readers of what stages stored: tasks and test rows."""

from skill_grafting.support.io import read_json, read_rows
from stages.text.tasks.tasks import TaskSpec
from stages.workflow.stage import paths


def read_task(name: str) -> TaskSpec:
    """The resolved task definition that fetch stored; raises DataError if it isn't there."""
    return TaskSpec.model_validate(read_json(paths.card(name))["task"])


def read_test_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """Test set name -> rows; the task's own comes first, then the others that fetch wrote, in alphabetical order."""
    sets = {task: read_rows(paths.sample(task, seed, "test"))}
    for file in sorted(paths.ood_table(task, "x").parent.glob("*.jsonl")):
        sets[file.stem] = read_rows(file)
    return sets
