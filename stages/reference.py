"""reference: what the pretrained and the fine-tuned model of one (task, seed) predict.

Kept apart from `evaluate` because no mask and no sparsity changes it.
"""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(task: str, seed: int) -> None:
    """Store the logits of both models on the task's test set and its out-of-distribution sets."""
    params = load_params("model", "runtime")

    from stages.lib import runtime
    from stages.lib.cells.evaluating import Evaluation
    from stages.lib.data.cards import read_task
    from stages.lib.data.test_sets import read_test_sets
    from stages.lib.measure.predictions import write_predictions
    from stages.lib.measure.variants import FINETUNED, PRETRAINED
    from stages.lib.model.anatomy import read_anatomy
    from stages.lib.model.label_model import LabelModel
    from stages.lib.model.reset import reset_to_pretrained

    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, runtime.start(params.runtime))
    evaluation = Evaluation(model, read_test_sets(task, seed), variants=2)
    with evaluation.progress(f"reference {task}-{seed}"):
        evaluation.predict(FINETUNED)
        reset_to_pretrained(model, read_anatomy(paths.PRETRAINED), paths.PRETRAINED)
        evaluation.predict(PRETRAINED)
    write_predictions(paths.predictions("reference", task, seed), evaluation.predictions())
    print(f"reference {task}-{seed}: {evaluation.describe()}")


if __name__ == "__main__":
    main()
