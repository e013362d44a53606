"""sweep: the mask of one localizer at one size, and how good its graft is, for all tasks of one seed."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(localizer: str, sparsity: str, seed: int) -> None:
    """Find the masks, graft, and measure."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "graft.rule", "calibration.bins", "study.tasks", "study.test_max",
        f"localizer.{localizer}",
    )  # fmt: skip
    reading = paths.reading_dir("sweep", (localizer, sparsity), seed)
    make_folders(paths.SWEEP / localizer / sparsity / str(seed), reading)

    from stages.lib import runtime
    from stages.study.localizer_sweep import sweep

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(sweep(localizer, sparsity, task, seed, params, machine))


if __name__ == "__main__":
    main()
