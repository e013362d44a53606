"""reference: what the pretrained and the fine-tuned models of one seed predict.

Kept apart from `evaluate` because no mask and no sparsity changes it.
"""

from stages.lib.entry import stage
from stages.workflow.settings import MODEL, load_params


@stage
def main(seed: int) -> None:
    """Store the logits of both models on every task's test set and its out-of-distribution sets."""
    params = load_params("tasks", *MODEL)

    from stages.lib import runtime
    from stages.lib.evaluation.evaluation import predict_reference

    machine = runtime.start(params.runtime)
    for task in params.tasks:
        print(predict_reference(task, seed, params.model, machine))


if __name__ == "__main__":
    main()
