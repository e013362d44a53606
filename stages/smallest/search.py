"""search: the smallest grafts by one localizer that bring most of the gain, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(localizer: str, seed: int) -> None:
    """Bisect over the sizes of grafts on dev rows, and measure the one found."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "calibration.bins", "summary.least_gain", "smallest.tasks", "smallest.gain",
        "smallest.largest", "smallest.precision", f"localizer.{localizer}",
    )  # fmt: skip
    make_folders(paths.stage_dir("search", (localizer,), seed))

    from skill_grafting import runtime
    from stages.smallest.experiment.smallest_graft import search

    machine = runtime.start(params.runtime)
    for task in params.smallest.tasks:
        print(search(localizer, task, seed, params, machine))


if __name__ == "__main__":
    main()
