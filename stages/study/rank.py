"""rank: the order in which one localizer chooses the parameters of one seed's tasks."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(localizer: str, seed: int) -> None:
    """Store the localizer's first movement.keep share of the region, best first."""
    params = load_params("tasks", *MODEL, "movement", "graft.region", "study.tasks", f"localizer.{localizer}")
    make_folders(paths.RANK / str(seed) / localizer)

    from skill_grafting import runtime
    from stages.study.localizer_sweep import rank

    machine = runtime.start(params.runtime)
    for task in params.study.tasks:
        print(rank(localizer, task, seed, params, machine))


if __name__ == "__main__":
    main()
