"""controls: what a graft's calibration is compared with, of one seed's models: one temperature, a refitted head, and WiSE-FT.

Kept apart from `evaluate` because no mask and no sparsity changes it, and from `reference`, which no setting of calibration changes.
"""

from stages.lib.entry import stage
from stages.workflow.settings import MODEL, load_params


@stage
def main(seed: int) -> None:
    """Fit the controls of every task; store their logits, and what they were fitted to."""
    params = load_params("tasks", *MODEL, "finetune", "calibration.wise_alphas", "calibration.refit_head_steps")

    from stages.lib import runtime
    from stages.lib.evaluation.controls import predict_controls

    machine = runtime.start(params.runtime)
    for task in params.tasks:
        print(predict_controls(task, seed, params, machine))


if __name__ == "__main__":
    main()
