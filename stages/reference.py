"""reference: what the pretrained and the fine-tuned models of one seed predict.

Kept apart from `evaluate` because no mask and no sparsity changes it.
"""

from stages.workflow import paths
from stages.workflow.settings import MODEL, load_params
from stages.workflow.stage import stage


@stage
def main(seed: int) -> None:
    """Store the logits of both models on every task's test set and its out-of-distribution sets."""
    params = load_params("tasks", *MODEL)

    from stages.lib import runtime
    from stages.workflow.evaluation.reference import predict_reference

    machine = runtime.start(params.runtime, paths.PRETRAINED)
    for task in params.tasks:
        print(predict_reference(task, seed, params.model, machine))


if __name__ == "__main__":
    main()
