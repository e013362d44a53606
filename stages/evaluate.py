"""evaluate: what the grafted models of one (task, seed) predict, and how good they are."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import write_json
from stages.lib.params import load_params


@stage
def main(task: str, seed: int) -> None:
    """Store the logits of the grafted models, and the scores of all four models on the task's test set."""
    params = load_params("model.mode", "model.max_length", "runtime", "graft.region")

    from stages.lib import runtime
    from stages.lib.data.task_cards import read_task, read_test_sets
    from stages.lib.evaluation.evaluation import Evaluation, grafts
    from stages.lib.metrics.predictions import read_predictions, write_predictions
    from stages.lib.metrics.scores import classification_scores
    from stages.lib.models.label_model import LabelModel

    spec = read_task(task)
    model = LabelModel.load(paths.finetuned(task, seed), spec, params.model, runtime.start(params.runtime))
    evaluation = Evaluation(model, read_test_sets(task, seed), variants=2)
    with evaluation.progress(f"evaluate {task}-{seed}"):
        for variant, tensors in grafts(model, task, seed, params.graft.region):
            model.put(tensors)
            evaluation.predict(variant)
    write_predictions(paths.predictions("evaluate", task, seed), evaluation.predictions())
    together = read_predictions(paths.predictions("reference", task, seed)) | evaluation.predictions()
    write_json(paths.scores("evaluate", task, seed), {"scores": {task: classification_scores(together, spec)[task]}})
    print(f"evaluate {task}-{seed}: {evaluation.describe()}")


if __name__ == "__main__":
    main()
