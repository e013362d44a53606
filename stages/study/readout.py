"""readout: one use of one localizer's masks at every size, for the tasks of one seed."""

from itertools import product

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(readout: str, localizer: str, seed: int) -> None:
    """Put the masks into the model that way, and measure on test and training rows."""
    params = load_params(
        "tasks", *MODEL, "finetune", "graft.region", "calibration.bins", "study.test_max", "study.tasks",
        "readout.tasks", "readout.sparsities", "readout.learning_rates",
    )  # fmt: skip
    make_folders(paths.METRICS / "readout" / readout / localizer / str(seed))

    from skill_grafting import runtime
    from stages.study.readouts import read

    machine = runtime.start(params.runtime)
    for sparsity, task in product(params.readout.sparsities, params.readout.tasks):
        print(read((readout, localizer, str(sparsity)), task, seed, params, machine))


if __name__ == "__main__":
    main()
