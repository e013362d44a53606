"""sequence: tasks learned one after another in one order by one method, for one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, order: str, seed: int) -> None:
    """Learn the tasks in order, and test all of them so far after each."""
    params = load_params(
        "tasks", *MODEL, "finetune", "calibration.bins", "sequence.max_steps", "sequence.rate_factors",
        "sequence.test_max", f"order.{order}", f"method.{method}",
    )  # fmt: skip
    make_folders(paths.stage_dir("sequence", (method, order), seed))
    if not getattr(params.order, order):
        return

    from skill_grafting import runtime
    from stages.continual.experiment.run_sequence import run_sequence

    print(run_sequence(method, order, seed, params, runtime.start(params.runtime)))


if __name__ == "__main__":
    main()
