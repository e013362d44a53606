"""anchor: the two ends of every graft, the pretrained and the fine-tuned model, and the fine-tuned one pruned."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(seed: int) -> None:
    """Bring together what the study's other stages are measured against, training rows included."""
    params = load_params("tasks", *MODEL, "graft.region", "calibration.bins", "study.tasks", "study.test_max", "anchor")
    make_folders(paths.reading_dir("anchor", (), seed))

    from stages.lib import runtime
    from stages.study.endpoints import anchor

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(anchor(task, seed, params, machine))


if __name__ == "__main__":
    main()
