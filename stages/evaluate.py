"""evaluate: predictions of the grafted models of one (task, seed), and scores of all its models."""

from skill_grafting.io import write_sealed
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(task: str, seed: int) -> None:
    """Store the logits of the grafts, and the scores of all models on the task's test set."""
    params = load_params(*MODEL, "graft.region", "calibration.graft_alphas")

    from skill_grafting import runtime
    from skill_grafting.metrics.scores import classification_scores
    from stages.workflow.core.evaluation.grafts import predict_grafts
    from stages.workflow.core.stored import read_cell, read_task

    evaluation, fitted = predict_grafts(task, seed, params, runtime.start(params.runtime))
    scores = classification_scores(read_cell(task, seed), read_task(task))[task]
    write_sealed(paths.scores("evaluate", task, seed), {**fitted, "scores": {task: scores}})
    print(f"evaluate {task}-{seed}: {evaluation.describe()}")


if __name__ == "__main__":
    main()
