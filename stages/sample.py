"""sample: the few examples per class that one (task, seed) trains on, and the test set."""

from skill_grafting.support.io import read_rows, write_rows
from skill_grafting.support.writing import replacing
from stages.text.rows.sampling import draw_sample
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, task: str, seed: int) -> None:
    """Draw train, dev and test of a task for a seed."""
    rows = read_rows(paths.table(task))
    sample = draw_sample(rows, read_task(task).labels, task, seed, params.data)
    with replacing(paths.sample(task, seed, "train").parent) as folder:
        for split, chosen in sample.items():
            write_rows(folder / paths.sample(task, seed, split).name, chosen)
    print(f"sample {task}-{seed}: " + ", ".join(f"{len(chosen)} {split}" for split, chosen in sample.items()))
