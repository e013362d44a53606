"""robustness: the FIM score of every layer while all of them are fine-tuned, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Fine-tune, and score the layers and measure their movement on the way."""
    params = load_params("tasks", *MODEL, "surgery.score", "surgery.training", "robustness.tasks", "robustness.every")
    make_folders(paths.stage_dir("robustness", (), seed))

    from skill_grafting import runtime
    from stages.surgical.experiment.rank_robustness import watch_training

    machine = runtime.start(params.runtime)
    for task in params.robustness.tasks:
        print(watch_training(task, seed, params, machine))


if __name__ == "__main__":
    main()
