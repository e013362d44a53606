"""Reading what fetch and sample stored for a task: its card, and the test sets of a cell."""

from .. import paths
from ..io import read_json, read_rows, require
from .tasks import TaskSpec


def read_task(name: str) -> TaskSpec:
    """The resolved task definition that fetch stored; raises DataError if it isn't there."""
    return TaskSpec.model_validate(read_json(require(paths.card(name), "fetch"))["task"])


def read_test_sets(task: str, seed: int) -> dict[str, list[dict]]:
    """Test set name -> rows; the task's own comes first, then what else fetch put into its folder, by the alphabet."""
    sets = {task: read_rows(require(paths.sample(task, seed, "test"), f"sample@{task}-{seed}"))}
    for file in sorted(paths.ood_table(task, "x").parent.glob("*.jsonl")):
        sets[file.stem] = read_rows(file)
    return sets
