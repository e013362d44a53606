"""readout: one use of one localizer's masks at one size, for the tasks of one seed."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main(readout: str, localizer: str, sparsity: str, seed: int) -> None:
    """Put the masks into the model that way, and measure on test and training rows."""
    params = load_params(
        "model", "runtime", "finetune", "graft.region", "calibration.bins", "study.test_max", "readout.tasks",
        "readout.learning_rates",
    )  # fmt: skip

    from stages.lib import runtime
    from stages.study.readouts import read

    machine = runtime.start(params.runtime)
    for task in params.readout.tasks:
        print(read((readout, localizer, sparsity), task, seed, params, machine))


if __name__ == "__main__":
    main()
