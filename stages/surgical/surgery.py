"""surgery: fine-tuning of one selection of layers, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(selection: str, seed: int) -> None:
    """Train the selected layers from the pretrained model, and measure."""
    params = load_params(
        "tasks", *MODEL, "fim.tasks", "surgery.tasks", "surgery.test_max", "surgery.draws", "surgery.score",
        "surgery.training",
    )  # fmt: skip
    make_folders(paths.stage_dir("surgery", (selection,), seed))

    from skill_grafting import runtime
    from stages.surgical.experiment.layer_surgery import operate

    machine = runtime.start(params.runtime)
    for task in params.surgery.tasks:
        print(operate(selection, task, seed, params, machine))


if __name__ == "__main__":
    main()
