"""reference: predictions of the pretrained and fine-tuned models of one seed.

Kept apart from `evaluate` because no mask and no sparsity changes it.
"""

from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Store the logits of both models on every task's test set and its out-of-distribution sets."""
    params = load_params("tasks", *MODEL)

    from skill_grafting import runtime
    from stages.workflow.core.evaluation.reference import predict_reference

    machine = runtime.start(params.runtime)
    for task in params.tasks:
        print(predict_reference(task, seed, params.model, machine))


if __name__ == "__main__":
    main()
