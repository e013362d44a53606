"""peft: one parameter-efficient method trained from the pretrained model, for the tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, seed: int) -> None:
    """Train, and measure on test and training rows."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "calibration.bins", "study.test_max", "study.tasks", "peft.tasks",
        "peft.training",
    )  # fmt: skip
    make_folders(paths.stage_dir("peft", (method,), seed))

    from skill_grafting import runtime
    from stages.study.parameter_efficient import train_and_measure

    machine = runtime.start(params.runtime)
    for task in params.peft.tasks:
        print(train_and_measure(method, task, seed, params, machine))


if __name__ == "__main__":
    main()
