"""readout: one use of one localizer's masks at one size, for the tasks of one seed."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(readout: str, localizer: str, sparsity: str, seed: int) -> None:
    """Put the masks into the model that way, and measure on test and training rows."""
    params = load_params(
        "tasks", *MODEL, "finetune", "graft.region", "calibration.bins", "study.test_max", "study.tasks",
        "readout.tasks", "readout.learning_rates",
    )  # fmt: skip
    make_folders(paths.reading_dir("readout", (readout, localizer, sparsity), seed))

    from stages.lib import runtime
    from stages.study.readouts import read

    machine = runtime.start(params.runtime)
    for task in params.readout.tasks:
        print(read((readout, localizer, sparsity), task, seed, params, machine))


if __name__ == "__main__":
    main()
