"""anchor: the two ends of every graft, the pretrained and the fine-tuned model, and the fine-tuned one pruned."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Store the predictions that the study's other stages are compared with, training rows included."""
    params = load_params("tasks", *MODEL, "graft.region", "calibration.bins", "study.tasks", "study.test_max", "anchor")
    make_folders(paths.stage_dir("anchor", (), seed))

    from skill_grafting import runtime
    from stages.study.endpoints import anchor

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(anchor(task, seed, params, machine))


if __name__ == "__main__":
    main()
