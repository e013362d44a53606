"""ood: how well one seed's models do on the test sets of other tasks."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import write_json
from stages.workflow.settings import load_params


@stage
def main(seed: int) -> None:
    """Derive out-of-distribution scores of every task from the stored predictions."""
    params = load_params("tasks")

    from stages.lib.data.tasks import read_task
    from stages.lib.metrics.predictions import read_cell
    from stages.lib.metrics.scores import classification_scores

    for task in params.tasks:
        scores = classification_scores(read_cell(task, seed), read_task(task))
        del scores[task]
        write_json(paths.scores("ood", task, seed), {"scores": scores})
        print(f"ood {task}-{seed}: {len(scores)} test set(s) of other tasks")


if __name__ == "__main__":
    main()
