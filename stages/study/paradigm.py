"""paradigm: how well grafts work after fine-tuning with another optimizer, for the tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(paradigm: str, seed: int) -> None:
    """Fine-tune in this way, find regions of every size, graft, and measure."""
    params = load_params(
        "tasks", *MODEL, "finetune", "graft.region", "graft.rule", "localizer.learned", "calibration.bins",
        "study.test_max", "paradigm.tasks", "paradigm.sparsities", "paradigm.max_steps", "paradigm.adamw",
    )  # fmt: skip
    make_folders(paths.stage_dir("paradigm", (paradigm,), seed))

    from skill_grafting import runtime
    from stages.study.paradigms import finetune_and_graft

    machine = runtime.start(params.runtime)
    for task in params.paradigm.tasks:
        print(finetune_and_graft(paradigm, task, seed, params, machine))


if __name__ == "__main__":
    main()
