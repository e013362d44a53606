"""sample: the few examples per class that one (task, seed) trains on, and the test set."""

from skill_grafting.support.errors import DataError
from skill_grafting.support.io import read_json, read_rows, write_rows
from skill_grafting.support.writing import replacing
from stages.text.rows.content import Row, describe_dropped, dropped_in
from stages.text.rows.sampling import draw_sample
from stages.text.tasks.settings import DataParams
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


def drawn(task: str, seed: int, data: DataParams) -> dict[str, list[Row]]:
    """The rows of train, dev and test.  A DataError of too few says how many were dropped when the table was made, and why."""
    try:
        return draw_sample(read_rows(paths.table(task)), read_task(task).labels, task, seed, data)
    except DataError as problem:
        dropped = dropped_in(read_json(paths.card(task)), ("train", "dev"))
        lost = f"\ntask {task}: {dropped.total():,} rows were dropped before ({describe_dropped(dropped)})"
        raise DataError(f"{problem}{lost * (dropped.total() > 0)}") from None


@stage
def main(params: Settings, task: str, seed: int) -> None:
    """Draw train, dev and test of a task for a seed."""
    sample = drawn(task, seed, params.data)
    with replacing(paths.sample(task, seed, "train").parent) as folder:
        for split, chosen in sample.items():
            write_rows(folder / paths.sample(task, seed, split).name, chosen)
    print(f"sample {task}-{seed}: " + ", ".join(f"{len(chosen)} {split}" for split, chosen in sample.items()))
