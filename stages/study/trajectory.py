"""trajectory: checkpoints of fine-tuning and their grafts in one region, for the tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Fine-tune as before, look at every checkpoint, find the regions of one, and measure."""
    params = load_params(
        "tasks", *MODEL, "finetune", "graft.region", "graft.rule", "localizer.learned", "calibration.bins",
        "study.test_max", "study.tasks", "trajectory.tasks", "trajectory.checkpoints",
    )  # fmt: skip
    make_folders(paths.stage_dir("trajectory", (), seed))

    from skill_grafting import runtime
    from stages.study.checkpoints import trace

    machine = runtime.start(params.runtime)
    for task in params.trajectory.tasks:
        print(trace(task, seed, params, machine))


if __name__ == "__main__":
    main()
