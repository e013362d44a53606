"""level: the accuracies of the joint and of the pretrained model on every task, which relative gains refer to."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(paradigm: str, seed: int) -> None:
    """Predict the test rows of every task with both models."""
    params = load_params("tasks", *MODEL, "graft.region", "calibration.bins", "multitask.tasks", "multitask.test_max")
    make_folders(paths.stage_dir("level", (paradigm,), seed))
    if not params.multitask.tasks:
        return

    from skill_grafting import runtime
    from stages.multitask.experiment.joint_baselines import measure_baselines

    print(measure_baselines(paradigm, seed, params, runtime.start(params.runtime)))


if __name__ == "__main__":
    main()
