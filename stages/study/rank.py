"""rank: the order in which one localizer chooses the parameters of one seed's tasks."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(localizer: str, seed: int) -> None:
    """Store the localizer's first movement.keep share of the region, best first."""
    params = load_params("tasks", *MODEL, "movement", "graft.region", "study.tasks", f"localizer.{localizer}")
    make_folders(paths.RANK / str(seed) / localizer)

    from stages.lib import runtime
    from stages.study.localizer_sweep import rank

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(rank(localizer, task, seed, params, machine))


if __name__ == "__main__":
    main()
