"""controls: the baselines of a graft's calibration: one temperature, and WiSE-FT, for all models of one seed.

Kept apart from `evaluate` because no mask and no sparsity changes it, and from `reference`, which no setting of calibration changes.
"""

from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Fit the controls of every task; store their logits and fitted values."""
    params = load_params("tasks", *MODEL, "calibration.wise_alphas")

    from skill_grafting import runtime
    from stages.workflow.core.evaluation.controls import predict_controls

    machine = runtime.start(params.runtime)
    for task in params.tasks:
        print(predict_controls(task, seed, params, machine))


if __name__ == "__main__":
    main()
