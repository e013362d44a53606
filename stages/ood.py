"""ood: scores of one seed's models on the test sets of other tasks."""

from skill_grafting.support.io import write_json
from stages.text.scores.scores import classification_scores
from stages.workflow.cells.scoring import read_cell
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, seed: int) -> None:
    """Derive out-of-distribution scores of every task from the stored predictions."""
    for task in params.tasks:
        scores = classification_scores(read_cell(task, seed), read_task(task))
        del scores[task]
        write_json(paths.record("ood", task, seed), {"scores": scores})
        print(f"ood {task}-{seed}: {len(scores)} test set(s) of other tasks")
