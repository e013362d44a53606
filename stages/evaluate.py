"""evaluate: what the grafted models of one (task, seed) predict, and how good all its models are."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import write_json
from stages.workflow.settings import MODEL, load_params


@stage
def main(task: str, seed: int) -> None:
    """Store the logits of the grafts, and the scores of all models on the task's test set."""
    params = load_params(*MODEL, "finetune", "graft.region", "calibration.graft_alphas", "calibration.refit_head_steps")

    from stages.lib import runtime
    from stages.lib.data.tasks import read_task
    from stages.lib.evaluation.grafts import predict_grafts
    from stages.lib.metrics.predictions import read_cell
    from stages.lib.metrics.scores import classification_scores

    evaluation, fitted = predict_grafts(task, seed, params, runtime.start(params.runtime))
    scores = classification_scores(read_cell(task, seed), read_task(task))[task]
    write_json(paths.scores("evaluate", task, seed), {**fitted, "scores": {task: scores}})
    print(f"evaluate {task}-{seed}: {evaluation.describe()}")


if __name__ == "__main__":
    main()
