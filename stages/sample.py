"""sample: the few examples per class that one (task, seed) trains on, and the test set."""

from stages.text.sampling import draw_sample
from skill_grafting.fields import Params
from skill_grafting.io import read_rows, require, write_rows
from skill_grafting.writing import replacing
from stages.workflow.core import paths
from stages.workflow.core.stage import stage
from stages.workflow.core.stored import read_task


@stage
def main(params: Params, task: str, seed: int) -> None:
    """Draw train, dev and test of a task for a seed."""
    rows = read_rows(require(paths.table(task), "fetch"))
    sample = draw_sample(rows, read_task(task).labels, task, seed, params.data)
    with replacing(paths.sample(task, seed, "train").parent) as folder:
        for split, chosen in sample.items():
            write_rows(folder / paths.sample(task, seed, split).name, chosen)
    print(f"sample {task}-{seed}: " + ", ".join(f"{len(chosen)} {split}" for split, chosen in sample.items()))
