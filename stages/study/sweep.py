"""sweep: the mask of one localizer at one size, and how good its graft is, for all tasks of one seed."""

from stages.lib.io import make_folders
from stages.workflow import paths
from stages.workflow.settings import MODEL, load_params
from stages.workflow.stage import stage


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

    machine = runtime.start(params.runtime, paths.PRETRAINED)
    for task in params.study.tasks:
        print(sweep(localizer, sparsity, task, seed, params, machine))


if __name__ == "__main__":
    main()
