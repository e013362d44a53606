"""ood: scores of one seed's models on the test sets of other tasks."""

from skill_grafting.fields import Params
from skill_grafting.io import write_json
from stages.text.scores import classification_scores
from stages.workflow.core import paths
from stages.workflow.core.scoring import read_cell
from stages.workflow.core.stage import stage
from stages.workflow.core.stored import read_task


@stage
def main(params: Params, seed: int) -> None:
    """Derive out-of-distribution scores of every task from the stored predictions."""
    for task in params.tasks:
        scores = classification_scores(read_cell(task, seed), read_task(task))
        del scores[task]
        write_json(paths.record("ood", task, seed), {"scores": scores})
        print(f"ood {task}-{seed}: {len(scores)} test set(s) of other tasks")
